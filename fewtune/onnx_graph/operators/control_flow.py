"""If and Loop with constant conditions and lengths: branches inlined, bodies unrolled.

A constant is any value that is known once the model's shapes are bound, such as a trip count that
is read from a shape.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import GraphProto, NodeProto, numpy_helper

from fewtune.errors import InputError
from fewtune.onnx_graph.graph import attributes_of
from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler, Scope, refusal
from fewtune.util.asked import asked

# A model of more nodes takes minutes to import and compile.
_MOST_NODES = 20_000
_MOST_STEPS = 2000


class TooLongError(InputError):
    """A loop has too many steps to be unrolled, and may never end: nothing should run it."""


def _if(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    return inline_constant_if(graph, node, scope) or graph.refuse(
        node,
        "has a condition that depends on the input's values: export the model with that condition "
        "fixed",
    )


def inline_constant_if(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Inline the branch of an If with a constant condition; False if the condition is not."""
    condition = graph.value(node.input[0])
    if condition is None:
        return False
    chosen = attributes_of(node)["then_branch" if condition.reshape(()) else "else_branch"]
    _name_outputs(graph, _inlined(graph, chosen, {}, scope), node.output)
    return True


def _loop(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Unroll a loop whose trip count and condition are constants."""
    body: GraphProto = attributes_of(node)["body"]
    trips, condition = [*node.input, "", ""][:2]
    most = graph.value(trips) if trips else None
    if trips and most is None:
        return graph.refuse(
            node,
            "has a trip count that depends on the input's values: export the model with that "
            f"number fixed, or bind the input that it is read from by {asked('constant')}",
        )
    if not trips and not condition:
        return graph.refuse(node, "has neither a trip count nor a condition: it never ends")
    going, carried = condition or graph.constant(True), list(node.input[2:])
    scans: list[list[str]] = [[] for _ in node.output[len(carried) :]]
    names = [value.name for value in body.input]
    step, begin = 0, len(graph.nodes)
    while most is None or step < int(most.reshape(())):
        value = graph.value(going)
        if value is None:
            return graph.refuse(
                node,
                "ends by a condition that depends on the input's values: export the model with a "
                "fixed number of steps, or end it before that node",
            )
        if not value.reshape(()):
            break
        count = len(graph.nodes) - begin
        if step >= _MOST_STEPS or count > _MOST_NODES:
            reason = (
                f"runs for more than {step} steps, {count} nodes unrolled: at most {_MOST_STEPS} "
                f"steps and {_MOST_NODES} nodes can be"
            )
            raise TooLongError(refusal(node, reason))
        inputs = [graph.constant(np.array(step, np.int64)), going, *carried]
        results = _inlined(graph, body, dict(zip(names, inputs, strict=True)), scope)
        if graph.refusals:
            # Further steps would be refused for the same nodes.
            return False
        going, carried = results[0], results[1 : 1 + len(carried)]
        for parts, part in zip(scans, results[1 + len(carried) :], strict=True):
            parts.append(part)
        step += 1
    _name_outputs(graph, carried, node.output[: len(carried)])
    for parts, output in zip(scans, node.output[len(carried) :], strict=True):
        if not parts:
            return graph.refuse(node, f"has no step, so that output {output!r} is empty")
        if output:
            graph.concat([graph.unsqueeze(part, 0) for part in parts], 0, output)
    return True


def _inlined(
    graph: GraphBuilder, nested: GraphProto, inputs: dict[str, str], scope: Scope
) -> list[str]:
    """Add the nodes of a nested graph; returns the names of its outputs in this graph."""
    names = {**scope, **inputs}
    for tensor in nested.initializer:
        names[tensor.name] = graph.constant(numpy_helper.to_array(tensor), hint=tensor.name)
    for node in nested.node:
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [names.get(name, name) for name in node.input]
        for name in node.output:
            if name:
                names[name] = graph.fresh(name)
        copy.output[:] = [names[name] if name else "" for name in node.output]
        copy.name = node.name and f"{node.name}_{copy.output[0]}"
        graph.add(copy, names)
    return [names.get(value.name, value.name) for value in nested.output]


def _name_outputs(graph: GraphBuilder, values: Sequence[str], outputs: Sequence[str]) -> None:
    for value, output in zip(values, outputs, strict=True):
        if output:
            graph.op("Identity", [value], output)


HANDLERS: dict[str, Handler] = {"If": _if, "Loop": _loop}
