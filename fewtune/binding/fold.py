"""Folds values that a graph computes from shapes alone."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, ValueInfoProto, numpy_helper

from fewtune.onnx_graph.graph import (
    STANDARD,
    attach_weights,
    detach_weights,
    drop_unused_initializers,
    has_nested_graphs,
    nested_graphs,
    set_nodes,
    static_shape,
)
from fewtune.onnx_graph.observed_shapes import draws, run_onnxruntime_once

_READ_SHAPES = frozenset({"Shape", "Size"})
# Masks and tables of positions are this large; weights are folded by onnxslim.
_MAX_ELEMENTS = 1 << 22


def fold_shapes(model: ModelProto) -> int:
    """Replace values that follow from static shapes by constants, in place.

    Exporters compute the targets of reshapes, slices and resizes from the shapes of other values.
    If these are static, the results are the same for all inputs; onnxruntime computes them.

    Parameters
    ----------
    model : ModelProto
        Sorted, with shapes as far as they are known.

    Returns
    -------
    folded : int
        Number of nodes removed.
    """
    shapes = {
        value.name: static_shape(value)
        for value in [*model.graph.input, *model.graph.value_info, *model.graph.output]
    }
    constants = {tensor.name for tensor in model.graph.initializer}
    shapes |= {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    outputs = {value.name for value in model.graph.output}
    folded: set[str] = set()
    places = set()
    for place, node in enumerate(model.graph.node):
        read = [name for name in node.input if name]
        if node.op_type == "Constant":
            constants.update(node.output)
            continue
        if any(nested_graphs(node)) or node.domain not in STANDARD:
            continue
        if outputs.intersection(node.output):
            continue
        reads_shape = node.op_type in _READ_SHAPES and shapes.get(read[0]) is not None
        follows = constants.issuperset(read) and not folded.isdisjoint(read)
        sizes = [shapes.get(name) for name in node.output if name]
        small = all(size is not None and np.prod(size) <= _MAX_ELEMENTS for size in sizes)
        if (reads_shape or follows) and small:
            places.add(place)
            folded.update(node.output)
            constants.update(node.output)
    left = [node for place, node in enumerate(model.graph.node) if place not in places]
    wanted = sorted(folded & {name for node in left for name in node.input if name})
    if not wanted or has_nested_graphs(model):
        return 0
    light_model, weights = detach_weights(model)
    del light_model.graph.output[:]
    light_model.graph.output.extend(ValueInfoProto(name=name) for name in wanted)
    results = run_onnxruntime_once(attach_weights(light_model, weights), list(draws(model)))
    values = next((result for result in results if not isinstance(result, Exception)), None)
    if values is None:
        return 0
    set_nodes(model, left)
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), name)
        for name, array in zip(wanted, values, strict=True)
    )
    drop_unused_initializers(model)
    return len(places)
