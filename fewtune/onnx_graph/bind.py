"""Binds a model's dynamic dimensions and constant inputs, and finds the shape of every value.

ONNX's inference has no rule for operators of other domains, nor for some functions of the standard,
such as GroupNormalization. It does not follow sizes through every chain of operators. The shapes
that it does not find are taken from runs of onnxruntime.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from fewtune.errors import InputError, MachineError
from fewtune.onnx_graph.graph import (
    RANDOM,
    STANDARD,
    all_nodes,
    attach_weights,
    attributes_of,
    detach_weights,
    graph_inputs,
    live_nodes,
    node_text,
    opset_of,
    optional,
    remove_inputs,
    set_attributes,
    sort_nodes,
    static_shape,
    values_of,
)
from fewtune.onnx_graph.inputs import constant_arrays, input_shapes
from fewtune.onnx_graph.operators.builder import GraphBuilder, Scope
from fewtune.onnx_graph.operators.control_flow import HANDLERS as CONTROL_FLOW
from fewtune.onnx_graph.operators.control_flow import TooLongError, inline_constant_if
from fewtune.onnx_graph.operators.expand import expand
from fewtune.onnx_graph.session import OnnxruntimeSession
from fewtune.onnx_graph.simplify import MINIMUM_IR_VERSION, with_shapes
from fewtune.util.asked import asked

# onnxruntime does not support older operator sets (its documentation, "Compatibility").
_OLDEST_OPSET = 7
_GIGABYTE = 1e9
_MEMORY_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
# Numbers of the inputs that decide shapes.
_SHAPE_INPUTS: dict[str, Collection[int]] = {
    **dict.fromkeys(("ConstantOfShape", "Loop"), (0,)),
    **dict.fromkeys(("CenterCropPad", "Expand", "OneHot", "Reshape", "Split", "Squeeze"), (1,)),
    **dict.fromkeys(("Tile", "TopK", "Unsqueeze", "Upsample"), (1,)),
    **{f"Reduce{kind}": (1,) for kind in ("L1", "L2", "Max", "Mean", "Min", "Prod", "Sum")},
    **dict.fromkeys(("MaxUnpool", "NonMaxSuppression"), (2,)),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Resize": (2, 3),
    "Slice": (1, 2, 3, 4),
}
# Operators that pass sizes on from their first input, and those that compute them from all.
_CARRYING = frozenset({"Cast", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze"})
_CARRYING |= {"ReduceMax", "ReduceMin", "ReduceSum", "Ceil", "Floor", "Not"}
_COMPUTING = frozenset({"Add", "Concat", "Div", "Max", "Min", "Mul", "Sub"})
_MOST_SHOWN = 8


def bind_shapes(
    model: ModelProto,
    shapes: Mapping[str, Sequence[int]],
    dimensions: Mapping[str, int],
    constants: Mapping[str, Any] | None = None,
    samples: Mapping[str, np.ndarray] | None = None,
) -> ModelProto:
    """Bind the dynamic dimensions and the constant inputs of a model.

    Parameters
    ----------
    model : ModelProto
        With its weights in memory; it is left as it is.
    shapes, dimensions : mapping
        As for `fewtune.onnx_graph.inputs.input_shapes`; an empty input becomes a constant.
    constants : mapping, optional
        As for `fewtune.onnx_graph.inputs.constant_arrays`.
    samples : mapping, optional
        Inputs of the user: onnxruntime runs them to find shapes that inference does not.

    Returns
    -------
    model : ModelProto
        With sorted nodes, and static inputs and outputs. Weights are not
        listed as inputs. Shapes that the file declares for other values are found again.

    Raises
    ------
    InputError
        If a dimension is left open, the graph cannot be run, or the shape of an output depends
        on the inputs' values.
    MachineError
        If a tensor takes more memory than the machine can spare.
    """
    if opset_of(model) < _OLDEST_OPSET:
        raise InputError(
            f"the model is of operator set {opset_of(model)}, and onnxruntime runs {_OLDEST_OPSET} "
            "and later: convert it by onnx.version_converter, or export it again"
        )
    constants = constants or {}
    bound = input_shapes(model, shapes, dimensions, constants)
    arrays = constant_arrays(model, constants, shapes, dimensions)
    light_model, weights = detach_weights(model)
    canonicalize(light_model)
    names = {tensor.name for tensor in [*weights, *light_model.graph.initializer]}
    light_model.ir_version = max(light_model.ir_version, MINIMUM_IR_VERSION)
    _set_inputs(light_model, bound, arrays)
    # Declared shapes may be wrong, and inference does not correct them.
    del light_model.graph.value_info[:]
    for value in light_model.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    sort_nodes(light_model)
    light_model = with_shapes(light_model)
    refuse_beyond_memory(light_model)
    result = attach_weights(light_model, weights)
    remove_inputs(result.graph, names)
    # Twice, since a condition may follow from a shape that is only completed below.
    result = _inline_constant_branches(result)
    _refuse_unverifiable(result)
    _refuse_endless(result)
    return _inline_constant_branches(_with_all_shapes(result, samples))


def _set_inputs(
    model: ModelProto, shapes: Mapping[str, Sequence[int]], arrays: Mapping[str, np.ndarray]
) -> None:
    """Give inputs their shapes, and turn constant and empty ones into initializers, in place."""
    arrays = dict(arrays)
    for value in graph_inputs(model.graph):
        shape, element_type = shapes.get(value.name), value.type.tensor_type.elem_type
        if shape is None:
            continue
        if 0 in shape:
            arrays[value.name] = np.zeros(shape, helper.tensor_dtype_to_np_dtype(element_type))
        value.type.CopyFrom(helper.make_tensor_type_proto(element_type, shape))
    remove_inputs(model.graph, arrays)
    for name, array in arrays.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))


def refuse_beyond_memory(model: ModelProto, memory_bytes: int = _MEMORY_BYTES) -> None:
    """Refuse a model with a tensor that takes more than half of the machine's memory.

    The node that computes a tensor reads another one, and onnxruntime runs beside TVM.
    """
    size, name, shape = max(
        ((_bytes_of(value), value.name, static_shape(value)) for value in values_of(model)),
        key=lambda found: found[0],
        default=(0, "", None),
    )
    if size <= memory_bytes / 2:
        return
    node = next((node for node in model.graph.node if name in node.output), None)
    role = "an input of the model" if node is None else f"what {node.op_type} ({node.name!r}) gives"
    raise MachineError(
        f"tensor {name!r}, {role}, has the shape {'x'.join(map(str, shape or []))} and takes "
        f"{size / _GIGABYTE:.3g} GB; this machine has {memory_bytes / _GIGABYTE:.3g} GB of "
        "memory: give smaller shapes, or run it on a machine with more"
    )


def _bytes_of(value: ValueInfoProto) -> int:
    """Size of a tensor; 0 if it is not known."""
    shape, kind = static_shape(value), value.type.tensor_type.elem_type
    if shape is None or not kind:
        return 0
    return math.prod(shape) * helper.tensor_dtype_to_np_dtype(kind).itemsize


def _inline_constant_branches(model: ModelProto) -> ModelProto:
    """Inline each If whose condition follows from constants and shapes.

    With a constant input, such as a sampling rate, whole networks may be in branches that never
    run. onnxruntime 1.31 crashes when it folds constants in such nested branches. The model stays
    as it is if onnxruntime without optimizations returns different outputs for the two models.
    """
    settled = expand(model, {"If": inline_constant_if})
    if _branch_count(settled) == _branch_count(model):
        return model
    sessions = [OnnxruntimeSession(each, 0, optimised=False) for each in (model, settled)]
    is_same = False
    for feeds in draws(model):
        with contextlib.suppress(InputError):
            theirs, ours = (session.run(feeds) for session in sessions)
            pairs = zip(theirs, ours, strict=True)
            if not all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs):
                return model
            is_same = True
    return settled if is_same else model


def _branch_count(model: ModelProto) -> int:
    return sum(node.op_type == "If" for node in all_nodes(model.graph))


def _refuse_unverifiable(model: ModelProto) -> None:
    """Refuse random numbers, and shapes that depend on an input's values, by node."""
    live = live_nodes(model)
    producers = {name: node for node in live for name in node.output}
    inputs = {value.name: value for value in graph_inputs(model.graph)}
    for node in live:
        if node.domain not in STANDARD:
            continue
        if node.op_type in RANDOM:
            raise InputError(
                f"{node_text(node)} draws random numbers, so that no two runs give the same "
                "outputs and none can be checked: make what it gives an input of the model, or "
                "export the model without it"
            )
        for place in _SHAPE_INPUTS.get(node.op_type, ()):
            name = node.input[place] if place < len(node.input) else ""
            source = _source(name, producers, inputs)
            if source is not None:
                advice = asked("constant", source, _example(inputs[source]))
                raise InputError(
                    f"{node_text(node)} takes a size from the values of input {source!r}: "
                    f"bind them, as in {advice}"
                )


def _example(value: ValueInfoProto) -> str:
    """Example of a constant for an input."""
    count = math.prod(static_shape(value) or [])
    if value.type.tensor_type.elem_type == TensorProto.BOOL:
        return "[true]" if static_shape(value) else "true"
    return "8" if count == 1 else f"[{','.join(map(str, range(1, min(count, _MOST_SHOWN) + 1)))}]"


def _source(name: str, producers: dict[str, NodeProto], inputs: Collection[str]) -> str | None:
    """The input of the model from which a size is read, if any."""
    if name in inputs:
        return name
    node = producers.get(name)
    if node is None or node.op_type not in _CARRYING | _COMPUTING:
        return None
    given = node.input if node.op_type in _COMPUTING else node.input[:1]
    found = (_source(each, producers, inputs) for each in given)
    return next((each for each in found if each is not None), None)


def _refuse_endless(model: ModelProto) -> None:
    """Refuse a loop that never ends, before onnxruntime runs it."""
    try:
        expand(model, CONTROL_FLOW)
    except TooLongError:
        raise
    except InputError:
        pass  # the import reports the operator that it cannot expand


def _with_all_shapes(model: ModelProto, samples: Mapping[str, np.ndarray] | None) -> ModelProto:
    """The model with the shapes that inference did not find."""
    model = pad_selections(model)
    known = {value.name for value in values_of(model) if static_shape(value) is not None}
    if all(name in known or not name for node in model.graph.node for name in node.output):
        return model
    varying = complete_shapes(model, samples)
    padded = pad_selections(model)
    if padded is not model:
        # The number of boxes has only become known now.
        model = with_shapes(padded)
        varying = complete_shapes(model, samples)
    for value in model.graph.output:
        if static_shape(value) is None:
            raise InputError(_open_output(model, value.name, varying))
    return model


def _open_output(model: ModelProto, output: str, varying: Mapping[str, NodeProto]) -> str:
    """Message on why the shape of an output is open, and at which node that begins."""
    if output not in varying:
        return (
            f"output {output!r} is no tensor of a fixed shape in onnxruntime either: take it "
            "out of the model's outputs"
        )
    # Back along varying values to the first node whose output shape depends on values.
    name, node = output, varying[output]
    while (before := next((read for read in node.input if read in varying), None)) is not None:
        name, node = before, varying[before]
    through = "" if name == output else f", and with it the shape of output {output!r}"
    producers = {name: each for each in model.graph.node for name in each.output}
    inputs = {value.name: value for value in graph_inputs(model.graph)}
    source = _source(node.input[0], producers, inputs) if node.op_type == "If" else None
    if source is None:
        advice = "such a model is not supported, end it before that node"
    else:
        advice = asked("constant", source, _example(inputs[source]))
        advice = f"bind its condition, as in {advice}"
    return (
        f"the shape of {name!r}{through} depends on the input's values: {node_text(node)} "
        f"chooses it while the model runs; {advice}"
    )


def canonicalize(model: ModelProto) -> None:
    """Rewrite rare forms of a graph as usual ones, in place.

    - Nodes of one name get different names: onnxruntime refuses duplicates.
    - Empty inputs at the end are removed: onnxruntime 1.31 crashes in some fusions with them.
    - Outputs that are initializers are copied.
    - ONNX's default domain has one spelling.
    - TopK sorts: the unsorted order is not specified, in onnxruntime or TVM.
    - STFT gets its default, one-sided: ONNX's shape inference (1.23) assumes two-sided.
    """
    nodes = list(all_nodes(model.graph))
    taken = {node.name for node in nodes}
    seen: set[str] = set()
    for node in nodes:
        if node.name in seen:
            node.name = _fresh(node.name, taken)
        seen.update(filter(None, [node.name]))
        node.domain = "" if node.domain == "ai.onnx" else node.domain
        while node.input and not node.input[-1]:
            del node.input[-1]
        if node.op_type == "TopK" and not node.domain:
            set_attributes(node, sorted=None)
        if node.op_type == "STFT" and "onesided" not in attributes_of(node):
            set_attributes(node, onesided=1)
    for opset in model.opset_import:
        opset.domain = "" if opset.domain == "ai.onnx" else opset.domain
    _copy_constant_outputs(model)


def _copy_constant_outputs(model: ModelProto) -> None:
    graph, tensors = model.graph, {tensor.name: tensor for tensor in model.graph.initializer}
    taken = {name for node in all_nodes(graph) for name in [*node.input, *node.output]}
    taken |= {value.name for value in [*graph.input, *graph.output]} | tensors.keys()
    for name in [value.name for value in graph.output if value.name in tensors]:
        tensors[name].name = _fresh(name, taken)
        for node in all_nodes(graph):
            node.input[:] = [tensors[name].name if each == name else each for each in node.input]
        graph.node.append(helper.make_node("Identity", [tensors[name].name], [name]))


def _fresh(name: str, taken: set[str]) -> str:
    number = 2
    while f"{name}_{number}" in taken:
        number += 1
    taken.add(f"{name}_{number}")
    return f"{name}_{number}"


# The shapes of these operators' outputs depend on the values of their inputs.
_SIZED_BY_VALUES = frozenset({"NonZero", "NonMaxSuppression", "Unique", "Compress"})
_WANTED_RUNS = 2


def complete_shapes(
    model: ModelProto, samples: Mapping[str, np.ndarray] | None = None
) -> dict[str, NodeProto]:
    """Write the shapes that inference left open into a model, in place, from onnxruntime's runs.

    The model runs on two draws of inputs. A value that has the same shape in both is taken to be
    static, unless it depends on an operator whose output shapes depend on values.

    Parameters
    ----------
    model : ModelProto
        With static inputs, sorted nodes, weights in memory, and inferred shapes.
    samples : mapping, optional
        Inputs of the user, on which the model runs as well.

    Returns
    -------
    varying : dict
        Each value whose shape depends on the inputs' values, with its node, in graph order.

    Raises
    ------
    InputError
        If onnxruntime cannot load or run the model.
    """
    known = {value.name for value in values_of(model) if static_shape(value) is not None}
    unknown = [
        name for node in model.graph.node for name in node.output if name and name not in known
    ]
    if not unknown:
        return {}
    runs = _observed(model, unknown, samples)
    varying = _follow_values(model, known)
    for node in model.graph.node:
        for name in node.output:
            shapes = {getattr(run[name], "shape", None) for run in runs if name in run}
            if name in unknown and (len(shapes) > 1 or None in shapes):
                varying[name] = node
    _write(model, {name: runs[0][name] for name in unknown if name not in varying})
    return {name: node for node in model.graph.node for name in node.output if name in varying}


def draws(model: ModelProto) -> Iterator[dict[str, np.ndarray]]:
    """Draw inputs in three ways; in one of them all are positive, in another integers are zero."""
    for way in range(3):
        generator = np.random.default_rng(way)
        arrays = {}
        for value in graph_inputs(model.graph):
            shape = static_shape(value) or []
            dtype = np.dtype(helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
            if dtype.kind in "biu":
                array = np.full(shape, (1, 0, 2)[way])
            elif way == 0:
                array = generator.standard_normal(shape)
            else:
                # Some zeros: they vary the output shape of NonZero.
                array = generator.uniform(0, 1, shape)
                array = np.where(array < 0.3, 0.0, array) if way == 1 else array + 0.1
            arrays[value.name] = np.asarray(array).astype(dtype)
        yield arrays


def _observed(
    model: ModelProto, names: Sequence[str], samples: Mapping[str, np.ndarray] | None
) -> list[dict[str, Any]]:
    """Values by name, of the first runs that succeed."""
    light_model, weights = detach_weights(model)
    outputs = {value.name for value in light_model.graph.output}
    light_model.graph.output.extend(
        ValueInfoProto(name=name) for name in names if name not in outputs
    )
    shown = [value.name for value in light_model.graph.output]
    for value in light_model.graph.output:
        if value.name in names and value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    session = OnnxruntimeSession(attach_weights(light_model, weights), 0, optimised=False)
    found: list[dict[str, Any]] = []
    reason = ""
    for feeds in [*([dict(samples)] if samples else []), *draws(model)]:
        try:
            found.append(dict(zip(shown, session.run(feeds), strict=True)))
        except InputError as fault:
            reason = reason or str(fault)
        if len(found) == _WANTED_RUNS:
            break
    if not found:
        raise InputError(reason)
    return found


def _follow_values(model: ModelProto, known: set[str]) -> dict[str, NodeProto]:
    """Values of open shape that depend on an operator of `_SIZED_BY_VALUES`."""
    constants = {tensor.name for tensor in model.graph.initializer}
    varying: dict[str, NodeProto] = {}
    for node in model.graph.node:
        given = [name for name in node.input if name]
        reads_shape = node.op_type in ("Shape", "Size") and known.issuperset(given)
        # Only the chosen indices of a Compress decide its size.
        deciding = given[1:] if node.op_type == "Compress" else given
        if node.op_type not in RANDOM and (reads_shape or constants.issuperset(given)):
            constants.update(node.output)
        elif any(name in varying for name in given) or (
            node.op_type in _SIZED_BY_VALUES and not constants.issuperset(deciding)
        ):
            varying.update((name, node) for name in node.output if name and name not in known)
    return varying


def _write(model: ModelProto, found: Mapping[str, np.ndarray]) -> None:
    """Declare the shapes and types of these values."""
    kept = [value for value in model.graph.value_info if value.name not in found]
    outputs = {value.name: value for value in model.graph.output}
    del model.graph.value_info[:]
    model.graph.value_info.extend(kept)
    for name, array in found.items():
        try:
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        except (KeyError, ValueError):  # texts
            continue
        value = helper.make_tensor_value_info(name, kind, array.shape)
        if name in outputs:
            outputs[name].type.CopyFrom(value.type)
        else:
            model.graph.value_info.append(value)


# Non-maximum suppression, with its output padded to a static size

_SUPPRESSION = "NonMaxSuppression"
# Batch, class and box of a selection.
_COLUMNS = 3


def pad_selections(model: ModelProto) -> ModelProto:
    """Pad the output of each suppression with constant bounds to a static size.

    Rows of -1 follow the selected boxes, up to the most that can be selected. A gather by -1 reads
    the last box. The model has static shapes as far as they are known; it is returned itself if
    there is nothing to pad.
    """
    done = set(_padded_rows(model))

    def padded(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
        _, scores, count = optional(node.input, 3)
        shape, most = graph.shape(scores), graph.value(count) if count else None
        if shape is None or most is None or node.output[0] in done:
            return False
        rows = shape[0] * shape[1] * min(int(most.reshape(-1)[0]), shape[2])
        if rows < 1:
            return False
        selecting = NodeProto()
        selecting.CopyFrom(node)
        selecting.output[0] = graph.fresh(f"{node.output[0]}_selected")
        done.add(selecting.output[0])
        graph.add(selecting, scope)
        filling = graph.constant(np.full((rows, _COLUMNS), -1, np.int64))
        whole = graph.op("Concat", [selecting.output[0], filling], axis=0)
        first = graph.constant(np.arange(rows), np.int64)
        graph.op("Gather", [whole, first], node.output[0], axis=0)
        return True

    if all(node.op_type != _SUPPRESSION or node.output[0] in done for node in model.graph.node):
        return model
    return expand(model, {_SUPPRESSION: padded})


def padding_notes(model: ModelProto) -> list[str]:
    """A note for the user on each suppression that `pad_selections` padded."""
    padded = _padded_rows(model)
    return [
        f"{node_text(node)}: its output is padded to {padded[node.output[0]]} rows, the most boxes "
        "that it can select; rows beyond those selected hold -1, and what is gathered by them "
        "repeats the last box"
        for node in model.graph.node
        if node.op_type == _SUPPRESSION and node.output[0] in padded
    ]


def _padded_rows(model: ModelProto) -> dict[str, int]:
    """Rows of -1 behind the output of each padded suppression."""
    selected = {n.output[0] for n in model.graph.node if n.op_type == _SUPPRESSION}
    rows = {each.name: each.dims[0] for each in model.graph.initializer if len(each.dims) == 2}
    return {
        node.input[0]: rows[node.input[1]]
        for node in model.graph.node
        if node.op_type == "Concat" and node.input[0] in selected and node.input[1] in rows
    }
