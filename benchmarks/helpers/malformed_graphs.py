"""Malformed graphs: cycles, doubled names, endless loops, wrong sizes and types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from benchmarks.helpers.malformed_network import Case, edited, node, weight

_FLOAT = TensorProto.FLOAT


def _cycle(model: ModelProto) -> None:
    model.graph.node[1].input[0] = "p"


def _self_cycle(model: ModelProto) -> None:
    model.graph.node[1].input[0] = "r"


def _recursion(model: ModelProto) -> None:
    """A function of the model that calls itself."""
    body = [helper.make_node("Again", ["a"], ["z"], domain="own")]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "Again", ["a"], ["z"], body, opsets)
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.graph.node[1].CopyFrom(
        helper.make_node("Again", ["c"], ["r"], domain="own", name="again")
    )


def _mutual_recursion(model: ModelProto) -> None:
    """Two functions of the model that call each other."""
    _recursion(model)
    model.functions[0].node[0].op_type = "Other"
    other = onnx.FunctionProto()
    other.CopyFrom(model.functions[0])
    other.name, other.node[0].op_type = "Other", "Again"
    model.functions.append(other)


def _branches(model: ModelProto, depth: int = 1, condition: str = "x") -> None:
    """Nested branches, whose condition is no truth value."""

    def nested(level: int) -> onnx.GraphProto:
        output = helper.make_tensor_value_info(f"o{level}", _FLOAT, None)
        if level == depth:
            nodes = [helper.make_node("Identity", ["c"], [f"o{level}"])]
        else:
            inner = nested(level + 1)
            nodes = [
                helper.make_node(
                    "If", [condition], [f"o{level}"], then_branch=inner, else_branch=inner
                )
            ]
        return helper.make_graph(nodes, f"level{level}", [], [output])

    branch = nested(0)
    model.graph.node[1].CopyFrom(
        helper.make_node(
            "If", [condition], ["r"], name="if", then_branch=branch, else_branch=branch
        )
    )


def _endless_loop(model: ModelProto) -> None:
    """A loop of 2**40 steps."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Relu", ["s"], ["t"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("s", _FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("t", _FLOAT, None),
        ],
    )
    model.graph.initializer.append(numpy_helper.from_array(np.int64(2**40), "trips"))
    model.graph.node[1].CopyFrom(
        helper.make_node("Loop", ["trips", "", "c"], ["r"], name="loop", body=body)
    )


def _remove_weight(model: ModelProto) -> None:
    model.graph.initializer.remove(weight(model, "w"))


def _opset(version: int) -> Callable[[ModelProto], None]:
    def edit(model: ModelProto) -> None:
        model.opset_import[0].version = version

    return edit


def _do(*edits: Callable[[ModelProto], object]) -> Callable[[ModelProto], None]:
    def edit(model: ModelProto) -> None:
        for each in edits:
            each(model)

    return edit


def _long_name(model: ModelProto) -> None:
    """A name of a hundred thousand letters."""
    name = "n" * 100_000
    model.graph.node[1].output[0] = name
    model.graph.node[2].input[0] = name


def graph_cases() -> Iterator[Case]:
    """Models whose graph is wrong."""
    yield Case("no_graph", edited(lambda model: model.ClearField("graph")))
    yield Case("no_nodes", edited(lambda model: model.graph.ClearField("node")))
    yield Case("no_inputs", edited(lambda model: model.graph.ClearField("input")))
    yield Case("no_outputs", edited(lambda model: model.graph.ClearField("output")))
    yield Case("no_opset", edited(lambda model: model.ClearField("opset_import")))
    yield Case("no_weights", edited(lambda model: model.graph.ClearField("initializer")))
    yield Case("missing_weight", edited(_remove_weight))
    yield Case("cycle", edited(_cycle))
    yield Case("cycle_of_one", edited(_self_cycle))
    yield Case("output_twice", edited(node(1, output=["c"])))
    yield Case("output_is_input", edited(node(1, output=["x"])))
    yield Case("output_is_weight", edited(node(1, output=["w"])))
    yield Case(
        "weight_twice",
        edited(lambda model: model.graph.initializer.append(weight(model, "w"))),
    )
    yield Case("input_twice", edited(lambda model: model.graph.input.append(model.graph.input[0])))
    yield Case(
        "output_listed_twice",
        edited(lambda model: model.graph.output.append(model.graph.output[0])),
    )
    yield Case("output_of_nothing", edited(node(4, output=["z"])))
    yield Case("unknown_operator", edited(node(1, op_type="Frobnicate")))
    yield Case("unknown_domain", edited(node(1, domain="org.example")))
    yield Case("no_operator", edited(node(1, op_type="")))
    yield Case("too_few_inputs", edited(node(0, input=["x"])))
    yield Case("too_many_inputs", edited(node(1, input=["c"] * 5)))
    yield Case("empty_input", edited(node(0, input=["", "w", "b"])))
    yield Case("long_name", edited(_long_name), may_pass=True)
    yield Case(
        "name_of_nul",
        edited(_do(node(1, output=["a\0b"]), node(2, input=["a\0b"]))),
        may_pass=True,
    )
    for version in (0, -3, 999, 2**62):
        yield Case(f"opset_{version}", edited(_opset(version)))
    yield Case("ir_of_the_future", edited(lambda model: setattr(model, "ir_version", 10**6)))
    yield Case("recursion", edited(_recursion))
    yield Case("mutual_recursion", edited(_mutual_recursion))
    yield Case("branch_of_floats", edited(_branches))
    yield Case("branches_8_deep", edited(lambda model: _branches_of_truth(model, 8)), may_pass=True)
    yield Case("endless_loop", edited(_endless_loop))


def _branches_of_truth(model: ModelProto, depth: int) -> None:
    truth = numpy_helper.from_array(np.array(True), "truth")
    model.graph.initializer.append(truth)
    _branches(model, depth, "truth")


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
