"""Quantized tables and channels-last operators, compared with onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.expanded_models import assert_node, assert_same

RANDOM = np.random.default_rng(0)
PLACES = np.array([[0, 5], [3, 1]])


def table_model(tensor: TensorProto, scales: np.ndarray, zeros: np.ndarray | None) -> ModelProto:
    """Rows of a table quantized in blocks of 16."""
    names = ["table", "places", "scales", *(["zeros"] if zeros is not None else [])]
    given = {"block_size": 16, "gather_axis": 0, "quantize_axis": 1, "domain": "com.microsoft"}
    constants = [tensor, numpy_helper.from_array(scales, "scales")]
    constants += [numpy_helper.from_array(zeros, "zeros")] if zeros is not None else []
    graph = helper.make_graph(
        [helper.make_node("GatherBlockQuantized", names, ["out"], **given)],
        "table",
        [helper.make_tensor_value_info("places", TensorProto.INT64, PLACES.shape)],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [2, 2, 32])],
        constants,
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("has_zeros", [False, True])
def test_rows_of_a_packed_table(has_zeros: bool) -> None:
    table = numpy_helper.from_array(RANDOM.integers(0, 256, (6, 16)).astype(np.uint8), "table")
    scales = RANDOM.uniform(0.1, 1, (6, 2)).astype(np.float32)
    zeros = RANDOM.integers(0, 256, (6, 1)).astype(np.uint8) if has_zeros else None
    assert_same(table_model(table, scales, zeros), {"places": PLACES})


@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.UINT4])
def test_rows_of_a_table_of_four_bits(kind: int) -> None:
    least = -8 if kind == TensorProto.INT4 else 0
    numbers = RANDOM.integers(least, least + 16, 6 * 32).tolist()
    table = helper.make_tensor("table", kind, [6, 32], numbers)
    scales = RANDOM.uniform(0.1, 1, (6, 2)).astype(np.float32)
    assert_same(table_model(table, scales, None), {"places": PLACES})


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_a_pooling_with_channels_last(kind: type) -> None:
    least = np.iinfo(kind).min
    data = RANDOM.integers(least, least + 256, (1, 7, 9, 3)).astype(kind)
    given = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}
    assert_node("NhwcMaxPool", [data], **given)


@pytest.mark.parametrize("zero", [0, 3])
def test_a_mean_halfway_between_two_bytes_is_off_by_at_most_a_step(zero: int) -> None:
    data = RANDOM.integers(0, 256, (1, 3, 8, 8)).astype(np.uint8)
    # With a power of two as scale every sum is exact, so that halves occur.
    scale, place = np.array(0.0625, np.float32), np.array(zero, np.uint8)
    arrays = [data, scale, place, scale, place]
    given = {"kernel_shape": [2, 2], "strides": [2, 2]}
    # With an odd zero point onnxruntime rounds halves the other way.
    assert_node("QLinearAveragePool", arrays, constants=range(1, 5), steps=zero % 2, **given)


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_a_choice_of_bytes_of_two_scales(kind: type) -> None:
    least = np.iinfo(kind).min
    chosen = RANDOM.integers(0, 2, (3, 1)).astype(bool)
    first, second = (RANDOM.integers(least, least + 256, (3, 4)).astype(kind) for _ in range(2))
    scales = [np.array(scale, np.float32) for scale in (0.07, 0.11, 0.13)]
    zeros = [np.array(least + place, kind) for place in (20, 130, 100)]
    places = zip(scales, zeros, strict=True)
    inputs = [chosen, first, *next(places), second, *next(places), *next(places)]
    assert_node("QLinearWhere", inputs, constants=[2, 3, 5, 6, 7, 8])


@pytest.mark.parametrize("is_last", [0, 1])
def test_a_convolution_of_onnxruntime_becomes_that_of_onnx(is_last: int) -> None:
    shape = (1, 7, 9, 3) if is_last else (1, 3, 7, 9)
    data = RANDOM.integers(0, 256, shape).astype(np.uint8)
    inputs = [
        *(data, np.float32(0.02), np.uint8(128)),
        *(RANDOM.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8), np.float32(0.01), np.int8(0)),
        *(np.float32(0.05), np.uint8(10), RANDOM.integers(-500, 500, 4).astype(np.int32)),
    ]
    given = {"channels_last": is_last, "pads": [1] * 4, "strides": [2, 2]}
    arrays = [np.asarray(each) for each in inputs]
    assert_node("QLinearConv", arrays, constants=range(1, 9), **given)
