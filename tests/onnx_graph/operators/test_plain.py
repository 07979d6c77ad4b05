"""Small operators in forms that TVM's importer reads, compared with onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.expanded_models import assert_node

GENERATOR = np.random.default_rng(0)


def test_equality_of_booleans_is_written_as_xor() -> None:
    left, right = (GENERATOR.integers(0, 2, (3, 4)).astype(bool) for _ in range(2))
    result = assert_node("Equal", [left, right], domain="")
    assert [node.op_type for node in result.graph.node] == ["Xor", "Not"]


@pytest.mark.parametrize("axes", [None, [1], [-1, 0]])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("opset", [13, 18])
def test_log_sum_exp_is_written_out(axes: list[int] | None, keepdims: int, opset: int) -> None:
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


@pytest.mark.parametrize("axes", [[], [np.zeros(0, np.int64)]])
@pytest.mark.parametrize("kind", ["L1", "L2", "LogSum", "Max", "Mean", "Sum", "SumSquare"])
def test_a_reduction_over_no_axes_keeps_the_shape(kind: str, axes: list[np.ndarray]) -> None:
    data = GENERATOR.standard_normal((3, 4)).astype(np.float32)
    inputs = [np.abs(data) + 0.1 if kind == "LogSum" else data, *axes]
    places, opset = range(1, len(inputs)), 18 if axes else 20
    result = assert_node(
        f"Reduce{kind}", inputs, domain="", constants=places, opset=opset, noop_with_empty_axes=1
    )
    assert not any(node.op_type.startswith("Reduce") for node in result.graph.node)


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("opset", [17, 18])
def test_a_mean_of_integers_is_an_integer(opset: int, keepdims: int) -> None:
    data, axes = GENERATOR.integers(-50, 50, (3, 4, 5)).astype(np.int32), [-1, 0]
    inputs = [data] if opset < 18 else [data, np.array(axes)]
    given = {"keepdims": keepdims} | ({"axes": axes} if opset < 18 else {})
    places = range(1, len(inputs))
    result = assert_node("ReduceMean", inputs, domain="", constants=places, opset=opset, **given)
    assert "ReduceMean" not in {node.op_type for node in result.graph.node}


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_a_hardmax_marks_the_first_of_the_largest(axis: int, opset: int) -> None:
    data = GENERATOR.integers(0, 3, (2, 3, 4)).astype(np.float32)
    data[0] = np.finfo(np.float32).min
    assert_node("Hardmax", [data], domain="", opset=opset, axis=axis)


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("depth", [5, [5]])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
@pytest.mark.parametrize("constants", [(1, 2), (1,)])
def test_one_hot_accepts_any_form_of_depth(
    axis: int, depth: int | list[int], dtype: type, constants: tuple[int, ...]
) -> None:
    inputs = [GENERATOR.integers(-7, 9, (3, 4)), np.array(depth), np.array([2, 7], dtype)]
    assert_node("OneHot", inputs, domain="", constants=constants, axis=axis)


@pytest.mark.parametrize("pads", [[0, 0], [1, 0]])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 2), (2, 3), (4, 3)])
def test_a_pooling_by_norm_that_rounds_up(kernel: int, stride: int, pads: list[int]) -> None:
    signal = GENERATOR.standard_normal((1, 2, 10)).astype(np.float32)
    given = {"kernel_shape": [kernel], "strides": [stride], "pads": pads, "ceil_mode": 1}
    assert_node("LpPool", [signal], domain="", opset=18, **given)


def test_a_normalization_of_doubles() -> None:
    data = GENERATOR.standard_normal((2, 5))
    for more in ([np.ones(5)], [np.ones(5), np.full(5, 0.5)]):
        assert_node("LayerNormalization", [data, *more], domain="", opset=17)


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_a_norm_of_integers_is_truncated(kind: type) -> None:
    numbers = np.array([[1, 2, 3], [40000, 1, 1], [-7, 2, 0]], kind)
    assert_node("ReduceL2", [numbers], domain="", axes=[1])


@pytest.mark.parametrize("axes", [[1], [-1, 0], None])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("operator", ["ReduceLogSum", "ReduceLogSumExp"])
def test_a_logarithm_of_integers_is_truncated(
    operator: str, keepdims: int, axes: list[int] | None
) -> None:
    numbers = np.array([[1, 2, 3, 3], [4000, 1, 1, 0], [7] * 4, [-9, 9, 8, 9]], np.int32)
    given = {} if axes is None else {"axes": axes}
    assert_node(operator, [numbers], domain="", keepdims=keepdims, **given)


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_the_sign_of_unsigned_integers(kind: type) -> None:
    assert_node("Sign", [np.array([0, 1, 200], kind)], domain="")


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_one_hot_ignores_fractional_indices(dtype: type) -> None:
    places = np.array([0, 2, -1, 3, 0.5, -0.5, 2.999], np.float32).astype(dtype)
    inputs = [places, np.array([4]), np.array([-1, 5])]
    assert_node("OneHot", inputs, domain="", constants=[1, 2])


@pytest.mark.parametrize("exponent", [np.float32(2), np.int64(3), np.array([2.0], np.float32)])
def test_squares_and_cubes_of_integers_are_exact(exponent: np.ndarray) -> None:
    numbers = np.array([3037000499, -94906267, 2**40 + 1, -3, 0])
    model = assert_node("Pow", [numbers, np.asarray(exponent)], domain="", constants=[1])
    assert "Pow" not in {node.op_type for node in model.graph.node}
