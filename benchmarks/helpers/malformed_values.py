"""Malformed values: wrong sizes and types, attributes out of range."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from benchmarks.helpers.malformed_network import Case, edited, node, weight

_FLOAT = TensorProto.FLOAT


def _set_weight(model: ModelProto, name: str, array: np.ndarray) -> None:
    weight(model, name).CopyFrom(numpy_helper.from_array(array, name))


def _set_input(model: ModelProto, element_type: int, shape: Sequence[int | str | None]) -> None:
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", element_type, shape))


def _wrong_dims(model: ModelProto) -> None:
    weight(model, "w").dims[0] = 80


def _short_data(model: ModelProto) -> None:
    tensor = weight(model, "w")
    tensor.raw_data = tensor.raw_data[:-4]


def _negative_dims(model: ModelProto) -> None:
    weight(model, "w").dims[0] = -8


def _huge_dims(model: ModelProto) -> None:
    weight(model, "w").dims[0] = 2**62


def _huge_constant(model: ModelProto) -> None:
    """A constant of 4 TB that a few bytes ask for."""
    shape = numpy_helper.from_array(np.array([1, 8, 2**20, 2**17], np.int64), "size")
    model.graph.initializer.append(shape)
    model.graph.node[1].CopyFrom(helper.make_node("Expand", ["c", "size"], ["r"], name="expand"))


def _huge_pad(model: ModelProto) -> None:
    model.graph.node[0].attribute[0].ints[:] = [2**30] * 4


def _wide_input(model: ModelProto) -> None:
    _set_input(model, _FLOAT, [1, 3, 2**20, 2**20])


def _rank_mismatch(model: ModelProto) -> None:
    _set_input(model, _FLOAT, [1, 3, 8])


def _strings(model: ModelProto) -> None:
    _set_input(model, TensorProto.STRING, [1, 3, 8, 8])


def _complex(model: ModelProto) -> None:
    _set_input(model, TensorProto.COMPLEX64, [1, 3, 8, 8])


def _no_type(model: ModelProto) -> None:
    model.graph.input[0].ClearField("type")


def _unknown_type(model: ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = 99


def _nan(model: ModelProto) -> None:
    _set_weight(model, "u", np.array([0, np.nan, 1, 2, 3], np.float32))


def _infinite(model: ModelProto) -> None:
    _set_weight(model, "u", np.array([0, np.inf, 1, 2, 3], np.float32))


def _wrong_weight_type(model: ModelProto) -> None:
    _set_weight(model, "w", np.ones((8, 3, 3, 3), np.int32))


def _all_zero(model: ModelProto) -> None:
    for tensor in list(model.graph.initializer):
        _set_weight(model, tensor.name, np.zeros(tuple(tensor.dims), np.float32))


def value_cases() -> Iterator[Case]:
    """Models whose weights, shapes or attributes are wrong."""
    yield Case("wrong_dims", edited(_wrong_dims))
    yield Case("short_data", edited(_short_data))
    yield Case("negative_dims", edited(_negative_dims))
    yield Case("huge_dims", edited(_huge_dims))
    yield Case("huge_constant", edited(_huge_constant))
    yield Case("huge_pad", edited(_huge_pad))
    yield Case("wide_input", edited(_wide_input))
    yield Case("negative_input", edited(lambda model: _set_input(model, _FLOAT, [1, 3, -8, 8])))
    yield Case("empty_axis", edited(lambda model: _set_input(model, _FLOAT, [1, 3, 0, 8])))
    yield Case("open_axes", edited(lambda model: _set_input(model, _FLOAT, ["?", 3, "?", None])))
    yield Case("rank_mismatch", edited(_rank_mismatch))
    yield Case("strings", edited(_strings))
    yield Case("complex", edited(_complex))
    yield Case("no_type", edited(_no_type))
    yield Case("unknown_type", edited(_unknown_type))
    yield Case("nan_weight", edited(_nan))
    yield Case("infinite_weight", edited(_infinite), may_pass=True)
    yield Case("weights_of_integers", edited(_wrong_weight_type))
    yield Case("all_zero", edited(_all_zero))
    yield Case("zero_stride", edited(node(0, attribute={"strides": [0, 0]})))
    yield Case("negative_stride", edited(node(0, attribute={"strides": [-1, -1]})))
    yield Case("zero_groups", edited(node(0, attribute={"group": 0})))
    yield Case("text_for_number", edited(node(0, attribute={"group": "two"})))
    yield Case("number_for_list", edited(node(0, attribute={"pads": 1})))
    yield Case("unknown_attribute", edited(node(0, attribute={"colour": "red"})))
    yield Case("axis_out_of_range", edited(node(3, attribute={"axis": 9})))
