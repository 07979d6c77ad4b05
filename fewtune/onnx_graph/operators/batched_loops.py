"""Batched loops: all steps in one computation, for loops that carry no state between steps.

An example is the Scan that scikit-learn's converter writes for distances. Values that differ
between steps get a leading axis of steps; other values are computed once. A loop whose body has an
unknown operator is unrolled instead (`fewtune.onnx_graph.operators.control_flow`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto

from fewtune.onnx_graph.graph import STANDARD, attributes_of
from fewtune.onnx_graph.operators.builder import GraphBuilder, Scope

_UNARY = frozenset(
    {"Abs", "Cast", "Ceil", "Clip", "Cos", "Elu", "Erf", "Exp", "Floor", "Identity", "LeakyRelu"}
    | {"Log", "Neg", "Not", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Softplus"}
    | {"Sqrt", "Tan", "Tanh"}
)
_BROADCASTING = frozenset(
    {"Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max"}
    | {"Min", "Mod", "Mul", "Or", "Pow", "Sub", "Sum", "Where", "Xor"}
)
_REDUCTIONS = frozenset(
    {"ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin"}
    | {"ReduceProd", "ReduceSum", "ReduceSumSquare"}
)
_KNOWN = _UNARY | _BROADCASTING | _REDUCTIONS | {"Constant", "Gather", "MatMul", "Transpose"}
# A loop of fewer steps gains nothing.
_FEWEST_AT_ONCE = 2


class UnknownStepError(Exception):
    """A node of a body cannot be computed for all steps together."""


def batch_loop(graph: GraphBuilder, node: NodeProto, steps: int, scope: Scope) -> bool:
    """Compute all steps of a loop together, if no step changes a carried value."""
    (body,) = (attribute.g for attribute in node.attribute if attribute.name == "body")
    carried, begin = list(node.input[2:]), graph.node_count
    condition = [*node.input, ""][1] or graph.constant(True)
    names = [value.name for value in body.input]
    results = [value.name for value in body.output]
    kept = zip(names[2:], results[1 : 1 + len(carried)], strict=True)
    going = graph.value(condition)
    # A loop of one step, and of states only, is unrolled.
    if steps < _FEWEST_AT_ONCE or len(results) == 1 + len(carried):
        return False
    if going is None or not going.reshape(()) or not all(_unchanged(body, *e) for e in kept):
        return False
    same = dict(zip(names[1:], [condition, *carried], strict=True))
    # An Identity gives the step numbers a name of their own: an equal constant may be carried.
    numbers = graph.op("Identity", [graph.constant(np.arange(steps), np.int64)])
    made = _batched(graph, body, same, {names[0]: numbers}, scope)
    if made is None:
        return False
    goes_on, is_leading = made[0]
    value = graph.value(goes_on)
    parts = made[1 + len(carried) :]
    if is_leading or value is None or not value.reshape(()) or not all(each for _, each in parts):
        graph.forget(begin)
        return False
    name_outputs(graph, carried, node.output[: len(carried)])
    name_outputs(graph, [part for part, _ in parts], node.output[len(carried) :])
    return True


def batch_scan(
    graph: GraphBuilder,
    node: NodeProto,
    states: list[str],
    sequences: list[str],
    given: dict[str, Any],
    scope: Scope,
) -> bool:
    """Compute all steps of a scan together, if no step changes a state."""
    body: GraphProto = given["body"]
    names, results = ([value.name for value in each] for each in (body.input, body.output))
    kept = zip(names[: len(states)], results[: len(states)], strict=True)
    if not all(_unchanged(body, *each) for each in kept):
        return False
    begin = graph.node_count
    axes, backwards = sequence_axes(graph, sequences, given)
    first = [
        graph.op("Identity", [_steps_first(graph, name, axis, bool(back))])
        for name, axis, back in zip(sequences, axes, backwards, strict=True)
    ]
    same = dict(zip(names[: len(states)], states, strict=True))
    stepping = dict(zip(names[len(states) :], first, strict=True))
    made = _batched(graph, body, same, stepping, scope)
    parts = [] if made is None else made[len(states) :]
    if not parts or not all(is_leading for _, is_leading in parts):
        graph.forget(begin)
        return False
    name_outputs(graph, states, node.output[: len(states)])
    axes = given.get("scan_output_axes") or [0] * len(parts)
    backwards = given.get("scan_output_directions") or [0] * len(parts)
    outputs = node.output[len(states) :]
    for (part, _), axis, back, output in zip(parts, axes, backwards, outputs, strict=True):
        if output:
            _steps_at(graph, part, axis, bool(back), output)
    return True


def sequence_axes(
    graph: GraphBuilder, sequences: list[str], given: dict[str, Any]
) -> tuple[list[int], list[int]]:
    """For each sequence of a scan, the axis of its steps, and whether it is read backwards."""
    ranks = [len(graph.shape(name) or []) for name in sequences]
    axes = given.get("scan_input_axes") or [0] * len(sequences)
    axes = [axis % rank for axis, rank in zip(axes, ranks, strict=True)]
    return axes, given.get("scan_input_directions") or [0] * len(sequences)


def name_outputs(graph: GraphBuilder, values: Sequence[str], outputs: Sequence[str]) -> None:
    """Give values the names of a node's outputs."""
    for value, output in zip(values, outputs, strict=True):
        if output:
            graph.op("Identity", [value], output)


def _batched(
    graph: GraphBuilder,
    body: GraphProto,
    same: dict[str, str],
    stepping: dict[str, str],
    scope: dict[str, str],
) -> list[tuple[str, bool]] | None:
    """Add the nodes of a body once for all steps.

    Parameters
    ----------
    graph : GraphBuilder
    body : GraphProto
    same : dict
        Inputs of the body that no step changes, to their names in the graph.
    stepping : dict
        Inputs that differ between steps, to values of the graph with a leading axis of steps.
    scope : dict
        As for `GraphBuilder.add`.

    Returns
    -------
    outputs : list or None
        Name of each output of the body, and whether it has the leading axis. If the body has an
        unknown operator, None is returned and nothing is added.
    """
    if not all(n.domain in STANDARD and n.op_type in _KNOWN for n in body.node):
        return None
    begin = graph.node_count
    names = {**scope, **same, **stepping}
    leading = set(stepping.values())
    for tensor in body.initializer:
        names[tensor.name] = graph.nested_tensor(tensor)
    try:
        for node in body.node:
            copy = NodeProto()
            copy.CopyFrom(node)
            copy.input[:] = [names.get(name, name) for name in node.input]
            for name in filter(None, node.output):
                names[name] = graph.fresh(name)
            copy.output[:] = [names[name] if name else "" for name in node.output]
            copy.name = copy.output[0]
            if leading & set(copy.input):
                _for_all_steps(graph, copy, leading)
                leading.update(copy.output)
            else:
                graph.add(copy, names)
    except UnknownStepError:
        graph.forget(begin)
        return None
    results = [names.get(value.name, value.name) for value in body.output]
    return [(name, name in leading) for name in results]


def _unchanged(body: GraphProto, source: str, result: str) -> bool:
    """Whether a body returns an input unchanged."""
    made_by = {name: node for node in body.node for name in node.output}
    while result in made_by and made_by[result].op_type == "Identity":
        result = made_by[result].input[0]
    return result == source


def _for_all_steps(graph: GraphBuilder, node: NodeProto, leading: set[str]) -> None:
    """Add a node of which some inputs have the leading axis; its output has it as well."""
    if any(graph.shape(name) is None for name in node.input if name):
        raise UnknownStepError
    if node.op_type in _UNARY:
        if node.input[0] not in leading or leading & set(node.input[1:]):
            raise UnknownStepError
        graph.add(node, {})
        return
    rule: Callable[[GraphBuilder, NodeProto, set[str]], None]
    if node.op_type in _BROADCASTING:
        rule = _broadcasting
    elif node.op_type in _REDUCTIONS:
        rule = _reduction
    else:
        rule = {"Gather": _gather, "MatMul": _product, "Transpose": _transpose}[node.op_type]
    rule(graph, node, leading)


def _broadcasting(graph: GraphBuilder, node: NodeProto, leading: set[str]) -> None:
    """Insert axes of 1 behind the leading axis, so that the other axes stay right-aligned."""
    ranks = [len(graph.shape(name) or []) - (name in leading) for name in node.input]
    most = max(ranks)
    for place, (name, rank) in enumerate(zip(list(node.input), ranks, strict=True)):
        if name in leading and rank < most:
            steps, *shape = graph.shape(name) or []
            node.input[place] = graph.reshape(name, [steps, *[1] * (most - rank), *shape])
    graph.add(node, {})


def _reduction(graph: GraphBuilder, node: NodeProto, leading: set[str]) -> None:
    given = attributes_of(node)
    rank = len(graph.shape(node.input[0]) or []) - 1
    axes = given.get("axes")
    if len(node.input) > 1 and node.input[1]:
        axes = graph.value(node.input[1])
        if axes is None:
            raise UnknownStepError
    if given.get("noop_with_empty_axes") or node.input[0] not in leading:
        raise UnknownStepError
    places = range(rank) if axes is None else [int(axis) % rank for axis in axes]
    if not places:
        raise UnknownStepError
    graph.reduce(
        node.op_type,
        node.input[0],
        [1 + place for place in places],
        int(given.get("keepdims", 1)),
        node.output[0],
    )


def _gather(graph: GraphBuilder, node: NodeProto, leading: set[str]) -> None:
    """Gather one index for each step from the first axis of data that no step changes."""
    data, places = node.input
    axis = next((each.i for each in node.attribute if each.name == "axis"), 0)
    if data in leading or axis != 0 or len(graph.shape(places) or []) != 1:
        raise UnknownStepError
    graph.add(node, {})


def _product(graph: GraphBuilder, node: NodeProto, leading: set[str]) -> None:
    first, second = (len(graph.shape(name) or []) for name in node.input)
    is_plain = node.input[0] in leading and node.input[1] not in leading
    if not is_plain or first < 3 or second != 2:
        raise UnknownStepError
    graph.add(node, {})


def _transpose(graph: GraphBuilder, node: NodeProto, leading: set[str]) -> None:
    rank = len(graph.shape(node.input[0]) or []) - 1
    given = attributes_of(node)
    order = given.get("perm") or list(range(rank - 1, -1, -1))
    graph.transpose(node.input[0], [0, *(1 + axis for axis in order)], node.output[0])


def _steps_first(graph: GraphBuilder, data: str, axis: int, is_backwards: bool) -> str:
    """Move a sequence's axis of steps to the front, in the order of the steps."""
    shape = graph.shape(data) or []
    order = [axis, *(each for each in range(len(shape)) if each != axis)]
    if axis:
        data = graph.transpose(data, order)
    return _reversed(graph, data, shape[axis]) if is_backwards else data


def _steps_at(graph: GraphBuilder, data: str, axis: int, is_backwards: bool, output: str) -> None:
    """Move the leading axis of steps to another position of an output."""
    shape = graph.shape(data) or []
    if is_backwards:
        data = _reversed(graph, data, shape[0])
    order = list(range(1, len(shape)))
    order.insert(axis % len(shape), 0)
    if axis % len(shape):
        graph.transpose(data, order, output)
    else:
        graph.op("Identity", [data], output)


def _reversed(graph: GraphBuilder, data: str, steps: int) -> str:
    return graph.op("Gather", [data, graph.constant(np.arange(steps)[::-1], np.int64)], axis=0)
