"""Canonical forms of rare graphs: sparse weights, duplicate names, constant outputs and others."""

from __future__ import annotations

import numpy as np
from onnx import GraphProto, ModelProto, SparseTensorProto, TensorProto, helper, numpy_helper

from fewtune.onnx_graph.graph import all_nodes, nested_graphs

_ONNX = "ai.onnx"


def canonicalise(model: ModelProto) -> None:
    """Rewrite rare forms of a graph as usual ones, in place.

    - Sparse constants become dense.
    - Nodes of one name get different names.
    - Empty inputs at the end are removed: onnxruntime 1.31 crashes in some fusions with them.
    - Outputs that are initialisers, or that are listed twice, are copied.
    - ONNX's default domain has one spelling.
    - TopK sorts: the unsorted order is not specified, in onnxruntime or TVM.
    - STFT gets its default, one-sided: ONNX's shape inference (1.23) assumes two-sided.
    """
    _dense(model.graph)
    _rename_duplicate_nodes(model)
    _copy_constant_outputs(model)
    _rename_duplicate_outputs(model)
    for opset in model.opset_import:
        opset.domain = "" if opset.domain == _ONNX else opset.domain
    for node in all_nodes(model.graph):
        node.domain = "" if node.domain == _ONNX else node.domain
        while node.input and not node.input[-1]:
            del node.input[-1]
        if node.op_type == "TopK" and not node.domain:
            kept = [each for each in node.attribute if each.name != "sorted"]
            del node.attribute[:]
            node.attribute.extend(kept)
        if node.op_type == "STFT" and all(each.name != "onesided" for each in node.attribute):
            node.attribute.append(helper.make_attribute("onesided", 1))


def _dense(graph: GraphProto) -> None:
    for sparse in graph.sparse_initializer:
        graph.initializer.append(_array(sparse, sparse.values.name))
    del graph.sparse_initializer[:]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("sparse_tensor"):
                tensor = _array(attribute.sparse_tensor, "")
                attribute.CopyFrom(helper.make_attribute("value", tensor))
        for nested in nested_graphs(node):
            _dense(nested)


def _array(sparse: SparseTensorProto, name: str) -> TensorProto:
    values, places = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    dense = np.zeros(list(sparse.dims), values.dtype)
    if places.ndim == 1:
        dense.reshape(-1)[places] = values
    else:
        dense[tuple(places.T)] = values
    return numpy_helper.from_array(dense, name)


def _rename_duplicate_nodes(model: ModelProto) -> None:
    """Give nodes of one name different names: onnxruntime refuses duplicates."""
    seen: set[str] = set()
    taken = {node.name for node in all_nodes(model.graph)}
    for node in all_nodes(model.graph):
        if node.name in seen:
            node.name = _fresh(node.name, taken)
        if node.name:
            seen.add(node.name)


def _fresh(name: str, taken: set[str]) -> str:
    number = 2
    while f"{name}_{number}" in taken:
        number += 1
    taken.add(f"{name}_{number}")
    return f"{name}_{number}"


def _values(model: ModelProto) -> set[str]:
    graph = model.graph
    taken = {name for node in all_nodes(graph) for name in [*node.input, *node.output]}
    return taken | {each.name for each in [*graph.input, *graph.output, *graph.initializer]}


def _copy_constant_outputs(model: ModelProto) -> None:
    graph, taken = model.graph, _values(model)
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for name in dict.fromkeys(value.name for value in graph.output):
        if name not in tensors:
            continue
        tensors[name].name = _fresh(name, taken)
        for node in all_nodes(graph):
            node.input[:] = [tensors[name].name if each == name else each for each in node.input]
        graph.node.append(helper.make_node("Identity", [tensors[name].name], [name]))


def _rename_duplicate_outputs(model: ModelProto) -> None:
    """Give an output that is listed again another name: few tools but onnxruntime allow it."""
    taken, seen = _values(model), set()
    for value in model.graph.output:
        source = value.name
        if source in seen:
            value.name = _fresh(source, taken)
            model.graph.node.append(helper.make_node("Identity", [source], [value.name]))
        seen.add(value.name)
