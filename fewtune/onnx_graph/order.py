"""The order of a graph's nodes: each after those whose outputs it reads."""

from __future__ import annotations

import graphlib

from onnx import GraphProto, ModelProto, NodeProto

from fewtune.errors import InputError
from fewtune.onnx_graph.graph import nested_graphs, node_text, set_nodes


def sort_nodes(model: ModelProto) -> bool:
    """Sort a model's nodes topologically, in place.

    ONNX requires this order, and some exporters do not keep it. Sorted nodes keep their order.

    Returns
    -------
    changed : bool
        Whether the order has changed.

    Raises
    ------
    InputError
        If a value is read but never written, is written twice, or depends on itself.
    """
    nodes = list(model.graph.node)
    given = {value.name for value in model.graph.input}
    given |= {tensor.name for tensor in model.graph.initializer}
    producers: dict[str, int] = {}
    for place, node in enumerate(nodes):
        for name in filter(None, node.output):
            if name in producers or name in given:
                raise InputError(
                    f"{node_text(node)} writes {name!r}, which is written a second time: "
                    "export the model again"
                )
            producers[name] = place
    for node in nodes:
        for name in reads(node):
            if name not in producers and name not in given:
                raise InputError(
                    f"{node_text(node)} reads {name!r}, which is no input, no initializer and no "
                    "output of another node: export the model again"
                )
    for value in model.graph.output:
        if value.name not in producers and value.name not in given:
            raise InputError(
                f"output {value.name!r} is written by no node: remove it from the outputs, or "
                "export the model again"
            )
    waits = [{producers[name] for name in reads(node) if name in producers} for node in nodes]
    if all(max(sources, default=-1) < place for place, sources in enumerate(waits)):
        return False
    sorter = graphlib.TopologicalSorter(dict(enumerate(waits)))
    try:
        order = list(sorter.static_order())
    except graphlib.CycleError as error:
        raise InputError(
            f"{node_text(nodes[min(error.args[1])])} stands in a cycle: it waits for its own "
            "output; ONNX allows none, export the model again"
        ) from None
    set_nodes(model, [nodes[place] for place in order])
    return True


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
