"""The order of a graph's nodes: each after those whose outputs it reads."""

from __future__ import annotations

import contextlib
import graphlib

from onnx import GraphProto, ModelProto, NodeProto

from fewtune.onnx_graph.graph import nested_graphs, set_nodes


def sort_nodes(model: ModelProto) -> None:
    """Sort a model's nodes topologically, in place.

    ONNX requires this order, and some exporters do not keep it. Sorted nodes keep their order; so
    do those of a graph with a cycle, which ONNX's checker refuses.
    """
    nodes = list(model.graph.node)
    producers = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    waits = [{producers[name] for name in reads(node) if name in producers} for node in nodes]
    if all(max(sources, default=-1) < place for place, sources in enumerate(waits)):
        return
    sorter = graphlib.TopologicalSorter(dict(enumerate(waits)))
    with contextlib.suppress(graphlib.CycleError):
        set_nodes(model, [nodes[place] for place in sorter.static_order()])


def reads(node: NodeProto) -> set[str]:
    """Values of the surrounding graph that a node and its nested graphs read."""
    names = {name for name in node.input if name}
    for graph in nested_graphs(node):
        names |= _captured(graph)
    return names


def _captured(graph: GraphProto) -> set[str]:
    """Values of the surrounding graph that a nested graph reads."""
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {name for node in graph.node for name in node.output}
    read = {name for node in graph.node for name in reads(node)}
    read |= {value.name for value in graph.output}
    return read - own
