"""Refuses nodes whose outputs cannot be verified, or whose shapes cannot be bound."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

from fewtune.errors import InputError
from fewtune.onnx_graph.graph import RANDOM, STANDARD, graph_inputs, node_text, static_shape
from fewtune.onnx_graph.order import reads

# Numbers of the inputs that decide shapes.
_SHAPE_INPUTS: dict[str, Collection[int]] = {
    "CenterCropPad": (1,),
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "Loop": (0,),
    "MaxUnpool": (2,),
    "NonMaxSuppression": (2,),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
    **{f"Reduce{kind}": (1,) for kind in ("L1", "L2", "Max", "Mean", "Min", "Prod", "Sum")},
}
_MOST_SHOWN = 8
# Operators that pass sizes on.
_CARRYING = frozenset({"Cast", "Concat", "Identity", "Reshape", "Squeeze", "Unsqueeze"})


def refuse_unverifiable(model: ModelProto) -> None:
    """Refuse random numbers, strings, and shapes that depend on an input's values.

    Parameters
    ----------
    model : ModelProto
        With sorted nodes, inlined branches, and inferred shapes.

    Raises
    ------
    InputError
        Naming the node, and the input that is to be bound.
    """
    live = list(_live(model))
    texts = {
        value.name
        for value in model.graph.value_info
        if value.type.tensor_type.elem_type == TensorProto.STRING
    }
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
        if texts.intersection(node.output):
            raise InputError(
                f"{node_text(node)} writes texts; only numbers are supported: end the model "
                "before that node"
            )
        for place in _SHAPE_INPUTS.get(node.op_type, ()):
            name = node.input[place] if place < len(node.input) else ""
            source = _source(name, producers, inputs)
            if source is not None:
                raise InputError(
                    f"{node_text(node)} takes a size from the values of input {source!r}: "
                    f"bind them, as in --constant {source}={_example(inputs[source])}"
                )


def _example(value: ValueInfoProto) -> str:
    """Example of a constant for an input."""
    count = math.prod(static_shape(value) or [])
    return "8" if count == 1 else f"[{','.join(map(str, range(1, min(count, _MOST_SHOWN) + 1)))}]"


def _live(model: ModelProto) -> Iterator[NodeProto]:
    """The nodes that an output depends on, in the order of the graph."""
    wanted = {value.name for value in model.graph.output}
    kept: list[NodeProto] = []
    for node in reversed(model.graph.node):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted |= reads(node)
    return reversed(kept)


def _source(name: str, producers: dict[str, NodeProto], inputs: Collection[str]) -> str | None:
    """The input of the model from which a size is read, if any."""
    if name in inputs:
        return name
    node = producers.get(name)
    if node is None or node.op_type not in _CARRYING:
        return None
    given = node.input if node.op_type == "Concat" else node.input[:1]
    found = (_source(each, producers, inputs) for each in given)
    return next((each for each in found if each is not None), None)
