"""Forms of operators that TVM has otherwise than ONNX, written out; onnxruntime runs both."""

from __future__ import annotations

import numpy as np
import pytest

from tests.expanded_models import assert_node

RANDOM = np.random.default_rng(0)
ROWS = RANDOM.standard_normal((2, 3, 4)).astype(np.float32)
TIED = np.array([[0, 1, 1, 0], [2, 2, 2, 2], [-1, -3, -1, -2]], np.float32)


@pytest.mark.parametrize(("opset", "axis"), [(11, 1), (11, 2), (17, -1), (17, 1)])
def test_hardmax_marks_the_first_of_the_largest(opset: int, axis: int) -> None:
    assert_node("Hardmax", [ROWS], domain="", opset=opset, axis=axis)
    assert_node("Hardmax", [TIED], domain="", opset=opset, axis=1)


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("depth", [np.array(5), np.array([5])])
def test_one_hot_counts_negative_places_from_the_end(depth: np.ndarray, axis: int) -> None:
    places = np.array([[0, 4, -1], [-5, 7, 2]])
    values = np.array([-2.0, 3.0], np.float32)
    for constants in ((1, 2), (1,)):
        given = [places, depth, values]
        assert_node("OneHot", given, domain="", constants=constants, axis=axis)


def test_a_mean_of_integers_is_one() -> None:
    numbers = RANDOM.integers(-9, 9, (3, 5)).astype(np.int32)
    assert_node("ReduceMean", [numbers], domain="", axes=[1])


@pytest.mark.parametrize("operator", ["ReduceSum", "ReduceL2", "ReduceSumSquare", "ReduceMax"])
def test_a_reduction_along_no_axis_leaves_each_element_by_itself(operator: str) -> None:
    axes = np.zeros(0, np.int64)
    given = {"noop_with_empty_axes": 1}
    assert_node(operator, [ROWS, axes], domain="", constants=(1,), opset=18, **given)


@pytest.mark.parametrize("pads", [[0, 0], [1, 0]])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 2), (2, 3), (4, 3)])
def test_a_pooling_by_norm_that_rounds_up(kernel: int, stride: int, pads: list[int]) -> None:
    signal = RANDOM.standard_normal((1, 2, 10)).astype(np.float32)
    given = {"kernel_shape": [kernel], "strides": [stride], "pads": pads, "ceil_mode": 1}
    assert_node("LpPool", [signal], domain="", opset=18, **given)


def test_a_normalization_of_doubles() -> None:
    data = RANDOM.standard_normal((2, 5))
    for more in ([np.ones(5)], [np.ones(5), np.full(5, 0.5)]):
        assert_node("LayerNormalization", [data, *more], domain="", opset=17)


@pytest.mark.parametrize("kind", ["MAX", "L1", "L2"])
def test_a_row_without_a_norm_stays(kind: str) -> None:
    rows = np.array([[0, 0, 0], [1, 2, 3]], np.float32)
    assert_node("Normalizer", [rows], domain="ai.onnx.ml", norm=kind)


@pytest.mark.parametrize("transform", ["SOFTMAX", "LOGISTIC", "NONE"])
def test_a_linear_regression_that_transforms_its_result(transform: str) -> None:
    rows = RANDOM.standard_normal((4, 3)).astype(np.float32)
    given = {"coefficients": [0.5, -1.0, 2.0, 1.0, 0.25, -0.5], "intercepts": [0.1, -0.2]}
    assert_node(
        "LinearRegressor", [rows], domain="ai.onnx.ml", targets=2, post_transform=transform, **given
    )
