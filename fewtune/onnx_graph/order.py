"""The order of a graph's nodes: each after those whose outputs it reads."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

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
    given |= {sparse.values.name for sparse in model.graph.sparse_initializer}
    producers = _producers(nodes, given)
    waits = [_sources(node, producers) for node in nodes]
    for place, node in enumerate(nodes):
        for name in reads(node):
            if name not in producers and name not in given:
                raise InputError(
                    f"{node_text(node)} reads {name!r}, which is no input, no initializer and no "
                    "output of another node: export the model again"
                )
        if place in waits[place]:
            raise InputError(f"{node_text(node)} reads its own output: export the model again")
    for value in model.graph.output:
        if value.name not in producers and value.name not in given:
            raise InputError(
                f"output {value.name!r} is written by no node: remove it from the outputs, or "
                "export the model again"
            )
    order = _order(nodes, waits)
    if order == list(range(len(nodes))):
        return False
    set_nodes(model, [nodes[place] for place in order])
    return True


def _producers(nodes: Iterable[NodeProto], given: set[str]) -> dict[str, int]:
    producers: dict[str, int] = {}
    for place, node in enumerate(nodes):
        for name in node.output:
            if not name:
                continue
            if name in producers or name in given:
                raise InputError(
                    f"{node_text(node)} writes {name!r}, which is written a second time: "
                    "export the model again"
                )
            producers[name] = place
    return producers


def reads(node: NodeProto) -> set[str]:
    """Values of the surrounding graph that a node and its nested graphs read."""
    names = {name for name in node.input if name}
    for graph in nested_graphs(node):
        names |= _captured(graph)
    return names


def _captured(graph: GraphProto) -> set[str]:
    """Values of the surrounding graph that a nested graph reads."""
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {sparse.values.name for sparse in graph.sparse_initializer}
    own |= {name for node in graph.node for name in node.output}
    read = {name for node in graph.node for name in reads(node)}
    read |= {value.name for value in graph.output}
    return read - own


def _sources(node: NodeProto, producers: dict[str, int]) -> set[int]:
    return {producers[name] for name in reads(node) if name in producers}


def _order(nodes: list[NodeProto], waits: list[set[int]]) -> list[int]:
    """Kahn's algorithm; of the nodes that are ready, the first in the file comes first."""
    readers: dict[int, list[int]] = {}
    for place, sources in enumerate(waits):
        for source in sources:
            readers.setdefault(source, []).append(place)
    left = [len(sources) for sources in waits]
    ready = [place for place, count in enumerate(left) if count == 0]
    order = []
    while ready:
        place = heapq.heappop(ready)
        order.append(place)
        for reader in readers.get(place, ()):
            left[reader] -= 1
            if left[reader] == 0:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        stuck = next(place for place, count in enumerate(left) if count > 0)
        raise InputError(
            f"{node_text(nodes[stuck])} stands in or behind a cycle: it waits for its own output; "
            "ONNX allows none, export the model again"
        )
    return order
