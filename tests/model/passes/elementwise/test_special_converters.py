"""Operators on NaN, infinities and numbers out of range: what onnxruntime gives."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from fewtune.model.import_options import ImportOptions
from fewtune.model.lower_checked import lower_checked
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.runtime.executable import CompiledModel
from tests import tuned_tiny

FLOAT = TensorProto.FLOAT
NAN, INF = np.nan, np.inf
VALUES = np.array([[NAN, 1, -2, INF, -INF, 0, 0.5, 3]], np.float32)


def node(operator: str, *inputs: str, result: str = "y", **attributes: object) -> object:
    return helper.make_node(
        operator, list(inputs), [result], name=f"{operator}_{result}", **attributes
    )


def model_of(nodes: list, kind: int, constants: dict[str, float], data: np.ndarray) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", FLOAT, data.shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(np.float32(value), name) for name, value in constants.items()],
    )
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=10)


def both(
    nodes: list, kind: int = FLOAT, data: np.ndarray = VALUES, **constants: float
) -> tuple[np.ndarray, np.ndarray]:
    """Output of the compiled model, and onnxruntime's."""
    model = model_of(nodes, kind, constants, data)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (theirs,) = session.run(None, {"x": data})
    bound = bind_shapes(model, {"x": list(data.shape)}, {})
    made = lower_checked(bound, tuned_tiny.target(), ImportOptions(), lambda _compiled: 0.0)
    (ours,) = CompiledModel(made.executable, tuned_tiny.target()).outputs([data])
    return ours, theirs


CASES = {
    "relu": [node("Relu", "x")],
    "clip": [node("Clip", "x", "zero", "six")],
    "clip_below": [node("Clip", "x", "zero")],
    "clip_above": [node("Clip", "x", "", "six")],
    "clip_crossed": [node("Clip", "x", "six", "zero")],
    "hard_sigmoid": [node("HardSigmoid", "x")],
    "leaky": [node("LeakyRelu", "x", alpha=0.1)],
    "flat_leaky": [node("LeakyRelu", "x", alpha=0.0)],
    "elu": [node("Elu", "x")],
    "sign": [node("Sign", "x")],
    "thresholded": [node("ThresholdedRelu", "x")],
    "largest": [node("Max", "x", "six")],
    "least": [node("Min", "six", "x")],
    "of_two": [node("Exp", "x", result="e"), node("Max", "x", "e")],
    "nothing": [node("Mul", "x", "zero")],
    "nothing_over": [node("Div", "zero", "x")],
    "is_nan": [
        node("Equal", "x", "x", result="same"),
        node("Not", "same", result="other"),
        node("Where", "other", "six", "x"),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_special_values_are_as_onnxruntime_has_them(name: str) -> None:
    read = {each for step in CASES[name] for each in step.input}
    constants = {key: value for key, value in {"zero": 0.0, "six": 6.0}.items() if key in read}
    ours, theirs = both(CASES[name], **constants)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("operator", ["Equal", "LessOrEqual", "GreaterOrEqual"])
def test_nan_is_not_equal_to_itself(operator: str) -> None:
    ours, theirs = both([node(operator, "x", "x")], TensorProto.BOOL)
    assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize("kind", [TensorProto.INT32, TensorProto.INT64, TensorProto.UINT64])
def test_casts_out_of_range_are_as_onnxruntime_has_them(kind: int) -> None:
    data = np.array([NAN, INF, -INF, 3e9, -3e9, 1e19, 1e20, -1e19, 2.7, -2.7], np.float32)
    ours, theirs = both([node("Cast", "x", to=kind)], kind, data)
    assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize("row", [[INF, 1.0], [-INF, -INF], [-INF, 1.0], [2.0, 3.0]])
def test_a_sum_of_exponentials_may_be_infinite(row: list[float]) -> None:
    data = np.array([row], np.float32)
    ours, theirs = both([node("ReduceLogSumExp", "x", axes=[1])], data=data)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_a_sum_of_exponentials_may_be_of_a_scalar() -> None:
    ours, theirs = both([node("ReduceLogSumExp", "x")], data=np.array(-3.0, np.float32))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.parametrize(("operator", "infinity"), [("ReduceMax", -INF), ("ReduceMin", INF)])
def test_an_extreme_of_infinities_is_infinite(operator: str, infinity: float) -> None:
    data = np.full((2, 3, 8), infinity, np.float32)
    ours, theirs = both([node(operator, "x", axes=[2])], data=data)
    assert ours.tolist() == theirs.tolist()
