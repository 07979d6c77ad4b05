"""If, Loop and Scan with constant conditions and lengths: branches inlined, bodies unrolled.

A constant is any value that is known once the model's shapes are bound, such as a trip count that
is read from a shape.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import GraphProto, NodeProto

from fewtune.errors import InputError
from fewtune.onnx_graph.graph import attributes_of
from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler, Scope

# A model of more nodes takes minutes to import and compile.
_MOST_NODES = 20_000
_MOST_STEPS = 2000


class TooLongError(InputError):
    """A loop has too many steps to be unrolled, and may never end: nothing should run it."""


def _if(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Inline the branch of a constant condition, else both branches if their shapes are equal."""
    if inline_constant_if(graph, node, scope):
        return True
    given = attributes_of(node)
    chosen_at_run = graph.reshape(node.input[0], [])
    both = [_inlined(graph, given[name], {}, scope) for name in ("then_branch", "else_branch")]
    for first, second in zip(*both, strict=True):
        if graph.shape(first) is None or graph.shape(first) != graph.shape(second):
            return graph.refuse(
                node,
                "has a condition that depends on the input's values, and branches of different "
                "shapes: export the model with that condition fixed",
            )
    for first, second, output in zip(*both, node.output, strict=True):
        graph.op("Where", [chosen_at_run, first, second], output)
    return True


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
            "number fixed, or bind the input that it is read from by --constant",
        )
    if not trips and not condition:
        return graph.refuse(node, "has neither a trip count nor a condition: it never ends")
    going, carried = condition or graph.constant(True), list(node.input[2:])
    scans: list[list[str]] = [[] for _ in node.output[len(carried) :]]
    names = [value.name for value in body.input]
    step, begin = 0, graph.node_count
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
        if not _has_room(graph, node, step, begin):
            raise TooLongError("; ".join(graph.refusals))
        inputs = [graph.constant(np.array(step, np.int64)), going, *carried]
        results = _inlined(graph, body, dict(zip(names, inputs, strict=True)), scope)
        if graph.refusals:
            # Further steps would be refused for the same nodes.
            return False
        going, carried = results[0], results[1 : 1 + len(carried)]
        for parts, part in zip(scans, results[1 + len(carried) :], strict=True):
            parts.append(part)
        step += 1
    return _finish(graph, node, carried, scans)


def _scan(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Unroll a scan over the first axis, forwards."""
    given = attributes_of(node)
    if any(any(values) for name, values in given.items() if name.startswith("scan_")):
        return graph.refuse(node, "runs backwards, or along another axis than the first")
    body: GraphProto = given["body"]
    count = len(node.input) - given["num_scan_inputs"]
    states, sequences = list(node.input[:count]), node.input[count:]
    if any(graph.shape(name) is None for name in sequences):
        return graph.refuse(node, "reads tensors whose shape is not known before the model runs")
    scans: list[list[str]] = [[] for _ in body.output[count:]]
    names, begin = [value.name for value in body.input], graph.node_count
    for step in range(graph.shape(sequences[0])[0]):
        if not _has_room(graph, node, step, begin):
            return False
        taken = [_step_of(graph, name, 0, step) for name in sequences]
        inputs = dict(zip(names, [*states, *taken], strict=True))
        results = _inlined(graph, body, inputs, scope)
        if graph.refusals:
            return False
        states = results[:count]
        for parts, part in zip(scans, results[count:], strict=True):
            parts.append(part)
    return _finish(graph, node, states, scans)


def _has_room(graph: GraphBuilder, node: NodeProto, step: int, begin: int) -> bool:
    """Whether a further step may be unrolled; if not, the node is refused."""
    count = graph.node_count - begin
    if step < _MOST_STEPS and count <= _MOST_NODES:
        return True
    return graph.refuse(
        node,
        f"runs for more than {step} steps, {count} nodes unrolled: at most {_MOST_STEPS} steps and "
        f"{_MOST_NODES} nodes can be",
    )


def _step_of(graph: GraphBuilder, data: str, axis: int, step: int) -> str:
    """Take one index of an axis, and drop the axis.

    The index is a tensor of two axes, which the kernel reads: so one kernel serves all steps. A
    scalar would be written into the kernel, and an index of one axis becomes a slice
    (`fewtune.onnx_graph.views`): there would be a kernel for each step.
    """
    shape = graph.shape(data)
    if graph.value(data) is not None or shape[axis] == 1:
        index = graph.constant(np.array(step, np.int64))
        return graph.op("Gather", [data, index], axis=axis)
    taken = graph.op("Gather", [data, graph.constant([[step]], np.int64)], axis=axis)
    return graph.reshape(taken, [*shape[:axis], *shape[axis + 1 :]])


def _inlined(
    graph: GraphBuilder, nested: GraphProto, inputs: dict[str, str], scope: Scope
) -> list[str]:
    """Add the nodes of a nested graph; returns the names of its outputs in this graph."""
    names = {**scope, **inputs}
    for tensor in nested.initializer:
        names[tensor.name] = graph.nested_tensor(tensor)
    for node in nested.node:
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [names.get(name, name) for name in node.input]
        for name in node.output:
            if name:
                names[name] = graph.fresh(name)
        copy.output[:] = [names[name] if name else "" for name in node.output]
        copy.name = node.name and f"{node.name}_{copy.output[0]}"
        if not _taken_by_step(graph, copy, bool(inputs)):
            graph.add(copy, names)
    return [names.get(value.name, value.name) for value in nested.output]


def _taken_by_step(graph: GraphBuilder, node: NodeProto, unrolled: bool) -> bool:
    """Add a Gather of one index in an unrolled step by `_step_of`; False for any other node."""
    if not unrolled or node.op_type != "Gather":
        return False
    data, index = node.input
    value, shape = graph.value(index), graph.shape(data)
    if value is None or value.shape or not shape or graph.value(data) is not None:
        return False
    axis = attributes_of(node).get("axis", 0) % len(shape)
    taken = _step_of(graph, data, axis, int(value) % shape[axis])
    graph.op("Identity", [taken], node.output[0])
    return True


def _finish(
    graph: GraphBuilder, node: NodeProto, states: Sequence[str], scans: list[list[str]]
) -> bool:
    """Name the last states, and stack each output's parts."""
    _name_outputs(graph, states, node.output[: len(states)])
    for parts, output in zip(scans, node.output[len(states) :], strict=True):
        if not parts:
            return graph.refuse(node, f"has no step, so that output {output!r} is empty")
        if output:
            graph.concat([graph.unsqueeze(part, 0) for part in parts], 0, output)
    return True


def _name_outputs(graph: GraphBuilder, values: Sequence[str], outputs: Sequence[str]) -> None:
    for value, output in zip(values, outputs, strict=True):
        if output:
            graph.op("Identity", [value], output)


HANDLERS: dict[tuple[str, str], Handler] = {
    ("", "If"): _if,
    ("", "Loop"): _loop,
    ("", "Scan"): _scan,
}
