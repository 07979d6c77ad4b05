"""Layer normalisations of nearly equal numbers: rounding passes, wrong results do not."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from fewtune.verify.draws import Draw
from fewtune.verify.make_reference import make_reference
from fewtune.verify.reference import Reference
from fewtune.verify.session import tensor_specs

ROWS, WIDTH, EPSILON = 12, 64, 1e-5
RANDOM = np.random.default_rng(0)
SCALE, SHIFT = (RANDOM.standard_normal(WIDTH).astype(np.float32) for _ in range(2))
# Distances of the rows' means from zero, in units of the rows' standard deviation.
FAR = [0.0, 30.0, 300.0, 2000.0]


def normalisation(has_shift: bool) -> ModelProto:
    constants = {"scale": SCALE} | ({"shift": SHIFT} if has_shift else {})
    graph = helper.make_graph(
        [helper.make_node("LayerNormalization", ["x", *constants], ["y"], epsilon=EPSILON)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [ROWS, WIDTH])],
        [numpy_helper.from_array(each, name) for name, each in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def reference_of(far: float, has_shift: bool = True) -> Reference:
    model = normalisation(has_shift)
    data = (far + RANDOM.standard_normal((ROWS, WIDTH))).astype(np.float32)
    _, outputs = tensor_specs(model)
    return make_reference(model, model, outputs, [Draw("rows", {"x": data})], 1, 0)


def exact(feeds: dict[str, np.ndarray], has_shift: bool = True) -> list[np.ndarray]:
    data = feeds["x"].astype(np.float64)
    deviation = np.sqrt(data.var(axis=1, keepdims=True) + EPSILON)
    normal = (data - data.mean(axis=1, keepdims=True)) / deviation
    return [(normal * SCALE + SHIFT * has_shift).astype(np.float32)]


@pytest.mark.parametrize("has_shift", [False, True])
@pytest.mark.parametrize("far", FAR)
def test_what_is_exact_is_right(far: float, has_shift: bool) -> None:
    found = reference_of(far, has_shift).check(lambda feeds: exact(feeds, has_shift))
    assert found.allowances <= 1, found.text


def test_the_mean_of_equal_numbers_may_be_rounded() -> None:
    model = normalisation(True)
    data = np.repeat(RANDOM.uniform(0.5, 1, (ROWS, 1)), WIDTH, 1).astype(np.float32)
    _, outputs = tensor_specs(model)
    reference = make_reference(model, model, outputs, [Draw("rows", {"x": data})], 1, 0)
    off = data * 2.0**-23 / np.sqrt(EPSILON)
    assert reference.check(lambda _: [(off * SCALE + SHIFT).astype(np.float32)]).allowances <= 1


@pytest.mark.parametrize(("far", "factor"), [(0.0, 1.002), (30.0, 1.02)])
def test_a_row_that_is_off_is_refused(far: float, factor: float) -> None:
    def wrong(feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        (found,) = exact(feeds)
        found[3] = (found[3] - SHIFT) * factor + SHIFT
        return [found]

    assert reference_of(far).check(wrong).allowances > 1
