"""Split, Pad and ExpandDims, compared with onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.expanded_models import assert_node

RANDOM = np.random.default_rng(0)
ROWS = RANDOM.standard_normal((2, 3, 4)).astype(np.float32)


@pytest.mark.parametrize("sizes", [[2, 0, 2], [0, 4], [0, 0, 1, 3]])
def test_a_split_with_empty_parts(sizes: list[int]) -> None:
    outputs = [f"part_{place}" for place in range(len(sizes))]
    given = [ROWS, np.array(sizes)]
    assert_node("Split", given, outputs, domain="", constants=(1,), axis=2)


@pytest.mark.parametrize("pads", [[-1, 2], [2, -2], [-1, -2], [-2, 5]])
def test_a_wrapping_pad_with_negative_widths(pads: list[int]) -> None:
    row, widths = np.arange(6, dtype=np.float32), np.array(pads)
    assert_node("Pad", [row, widths], domain="", constants=(1,), opset=19, mode="wrap")
    axes = [row[None], widths, None, np.array([-1])]
    assert_node("Pad", axes, domain="", constants=(1, 3), opset=19, mode="wrap")


@pytest.mark.parametrize("axis", [0, 2, -1])
def test_an_axis_is_inserted_at_a_constant_index(axis: int) -> None:
    assert_node("ExpandDims", [ROWS, np.array(axis, np.int32)], constants=(1,))


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16])
def test_top_k_of_small_integers(dtype: type, largest: int) -> None:
    numbers = RANDOM.integers(-9, 9, (3, 8)).astype(dtype)
    model = assert_node(
        "TopK", [numbers, np.array([5])], ["v", "p"], "", (1,), 24, axis=1, largest=largest
    )
    (node,) = (each for each in model.graph.node if each.op_type == "TopK")
    assert node.output[1] == "p"
