"""Small operators in forms that TVM's importer reads, compared with onnxruntime."""

import numpy as np
import pytest
from onnx import helper

from fewtune.errors import InputError
from fewtune.model.lower import lower
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.onnx_graph.simplify import simplify
from fewtune.runtime.executable import CompiledModel, build_executable
from fewtune.runtime.tvm import tvm
from tests.expanded_models import assert_node, expanded, node_model

GENERATOR = np.random.default_rng(0)


def test_equality_of_booleans_is_written_as_xor():
    left, right = (GENERATOR.integers(0, 2, (3, 4)).astype(bool) for _ in range(2))
    result = assert_node("Equal", [left, right], domain="")
    assert [node.op_type for node in result.graph.node] == ["Xor", "Not"]


@pytest.mark.parametrize("axes", [None, [1], [-1, 0]])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("opset", [13, 18])
def test_log_sum_exp_is_written_out(axes, keepdims, opset):
    data = (30 * GENERATOR.standard_normal((3, 4, 5))).astype(np.float32)
    data[1, 2] = data[0, 0, 0] = -np.inf
    given = {} if axes is None or opset >= 18 else {"axes": axes}
    inputs = [data] if axes is None or opset < 18 else [data, np.array(axes)]
    operators = assert_node(
        "ReduceLogSumExp",
        inputs,
        domain="",
        constants=range(1, len(inputs)),
        opset=opset,
        keepdims=keepdims,
        **given,
    ).graph.node
    assert "ReduceMax" in {node.op_type for node in operators}


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("depth", [5, [5]])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_one_hot_accepts_any_form_of_depth(axis, depth, dtype):
    inputs = [GENERATOR.integers(-7, 9, (3, 4)), np.array(depth), np.array([2, 7], dtype)]
    assert_node("OneHot", inputs, domain="", constants=(1, 2), axis=axis)


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_one_hot_ignores_fractional_indices(dtype):
    places = np.array([0, 2, -1, 3, 0.5, -0.5, 2.999], np.float32).astype(dtype)
    inputs = [places, np.array([4]), np.array([-1, 5])]
    assert_node("OneHot", inputs, domain="", constants=[1, 2])


@pytest.mark.parametrize("exponent", [np.float32(2), np.int64(3), np.array([2.0], np.float32)])
def test_squares_and_cubes_of_integers_are_exact(exponent):
    numbers = np.array([3037000499, -94906267, 2**40 + 1, -3, 0])
    model = assert_node("Pow", [numbers, np.asarray(exponent)], domain="", constants=[1])
    assert "Pow" not in {node.op_type for node in model.graph.node}


@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMin"])
def test_booleans_are_reduced_as_integers(operator):
    data = np.array([[True, False], [True, True], [False, False]])
    model = assert_node(operator, [data, np.array([1])], domain="", constants=[1], opset=20)
    assert [n.op_type for n in model.graph.node] == ["Cast", operator, "Cast"]


@pytest.mark.parametrize("operator", ["ReduceMean", "ReduceL2", "ReduceLogSumExp"])
def test_fractions_of_integers_are_refused_by_name(operator):
    node = helper.make_node(operator, ["data"], ["out"], "node")
    model, _ = node_model(node, {"data": np.ones((2, 3), np.int32)})
    with pytest.raises(InputError, match=f"{operator} node 'node' reduces integers"):
        expanded(model)


MAGNITUDES = {
    "Sinh": [0, 1e-38, 1e-20, 1e-5, 0.3, 0.999, 1, 1.001, 5, 20, 88.5, 89.3, 100, np.inf],
    "Cosh": [0, 1e-38, 1e-20, 1e-5, 0.3, 0.999, 1, 1.001, 5, 20, 88.5, 89.3, 100, np.inf],
    "Acosh": [1, 1 + 1e-6, 1.0001, 1.03, 1.5, 3, 99, 1e4, 1e5, 1e20, 3e38, np.inf, 0.9],
    "Asinh": [0, 1e-38, 1e-20, 1e-5, 0.1, 0.249, 0.25, 0.251, 3, 3000, 1e5, 1e20, 3e38, np.inf],
    "Atanh": [0, 1e-38, 1e-20, 1e-5, 0.1, 0.249, 0.25, 0.251, 0.5, 0.9, 0.999, 1, 2],
}
EXACT = {
    "Sinh": np.sinh,
    "Cosh": np.cosh,
    "Acosh": np.arccosh,
    "Asinh": np.arcsinh,
    "Atanh": np.arctanh,
}


@pytest.mark.parametrize("operator", MAGNITUDES)
def test_small_and_large_numbers_of_hyperbolic_functions(operator):
    """Compiled by TVM, whose own forms lose all digits near zero."""
    magnitudes = np.array(MAGNITUDES[operator])
    data = np.concatenate([magnitudes, -magnitudes, [np.nan]]).astype(np.float32)
    node = helper.make_node(operator, ["data"], ["out"])
    model, _ = node_model(node, {"data": data}, opset=22)
    target = tvm.target.Target({"kind": "llvm", "num-cores": 1})
    executable = build_executable(
        lower(simplify(bind_shapes(model, {}, {})), target, "NCHW"), target
    )
    (actual,) = CompiledModel(executable, target).outputs([data])
    with np.errstate(all="ignore"):
        wanted = EXACT[operator](data.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(actual, wanted, rtol=8 * np.finfo(np.float32).eps)
