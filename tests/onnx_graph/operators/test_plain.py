"""Small operators in forms that TVM's importer reads, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.expanded_models import assert_node

GENERATOR = np.random.default_rng(0)


def test_equality_of_bits_is_no_comparison() -> None:
    left, right = (GENERATOR.integers(0, 2, (3, 4)).astype(bool) for _ in range(2))
    result = assert_node("Equal", [left, right], domain="")
    assert [node.op_type for node in result.graph.node] == ["Xor", "Not"]


@pytest.mark.parametrize("axes", [None, [1], [-1, 0]])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("opset", [13, 18])
def test_a_log_of_summed_exponentials_is_written_out(
    axes: list[int] | None, keepdims: int, opset: int
) -> None:
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


@pytest.mark.parametrize("kind", ["L1", "L2", "LogSum", "Max", "Mean", "Sum", "SumSquare"])
def test_a_reduction_of_no_axes_leaves_each_element_by_itself(kind: str) -> None:
    data = GENERATOR.standard_normal((3, 4)).astype(np.float32)
    data = np.abs(data) + 0.1 if kind == "LogSum" else data
    result = assert_node(f"Reduce{kind}", [data], domain="", opset=20, noop_with_empty_axes=1)
    assert not any(node.op_type.startswith("Reduce") for node in result.graph.node)


@pytest.mark.parametrize("keepdims", [0, 1])
def test_a_mean_of_whole_numbers_is_whole(keepdims: int) -> None:
    data = GENERATOR.integers(-50, 50, (3, 4, 5)).astype(np.int32)
    axes = np.array([-1, 0])
    result = assert_node(
        "ReduceMean", [data, axes], domain="", constants=[1], opset=18, keepdims=keepdims
    )
    assert "ReduceMean" not in {node.op_type for node in result.graph.node}


@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_hardmax_has_one_largest_element_a_row(axis: int, opset: int) -> None:
    data = GENERATOR.integers(0, 3, (2, 3, 4)).astype(np.float32)
    data[0] = np.finfo(np.float32).min
    assert_node("Hardmax", [data], domain="", opset=opset, axis=axis)


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("depth", [5, [5]])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_places_become_ones_whatever_form_the_depth_has(
    axis: int, depth: int | list[int], dtype: type
) -> None:
    inputs = [GENERATOR.integers(-7, 9, (3, 4)), np.array(depth), np.array([2, 7], dtype)]
    assert_node("OneHot", inputs, domain="", constants=[1, 2], axis=axis)
