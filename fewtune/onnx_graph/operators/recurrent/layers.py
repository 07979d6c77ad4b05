"""Unrolled LSTM, GRU and RNN.

The products of all steps' inputs are one matrix product. The product of the state with the
recurrent weights has the same shape at every step: it is one task. A step gathers its rows of the
inputs' products by an index that the kernel reads, so one kernel serves all steps. A slice would be
another kernel for each step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from onnx import NodeProto

from fewtune.onnx_graph.graph import attributes_of, optional
from fewtune.onnx_graph.operators.activations import Activation, activation
from fewtune.onnx_graph.operators.builder import GraphBuilder, Handler, Scope
from fewtune.onnx_graph.operators.recurrent.cells import Direction, State

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
# Each step is five nodes and two to four kernels.
MOST_STEPS = 2000


Product = Callable[[str, str, int], str]
"""Multiplies rows, (rows, inputs), by the weights of all directions, of which it takes one."""


def _expand(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    return expand_layer(graph, node, node.op_type)


def expand_layer(
    graph: GraphBuilder,
    node: NodeProto,
    kind: str,
    product: Product | None = None,
    most_steps: int = MOST_STEPS,
) -> bool:
    """Expand a layer of static length.

    Parameters
    ----------
    graph : GraphBuilder
    node : NodeProto
        Its first eight inputs are those of ONNX's operator.
    kind : {"LSTM", "GRU", "RNN"}
    product : callable, optional
        Replaces the matrix products with weights, which then are (directions, inputs, gates x
        hidden).
    most_steps : int
        A layer with more steps is refused.

    Returns
    -------
    is_expanded : bool
    """
    given = attributes_of(node)
    data, weights, recurrent, *others = optional(node.input, 8)
    bias, lengths, first_hidden, first_cell, peepholes = others
    shape, recurrent_shape = graph.shape(data), graph.shape(recurrent)
    if shape is None or recurrent_shape is None:
        return graph.refuse(node, "reads a sequence whose shape is not known before the model runs")
    if given.get("layout"):
        data = graph.transpose(data, [1, 0, 2])
        shape = [shape[1], shape[0], shape[2]]
    steps, batch, width = shape
    if steps > most_steps:
        return graph.refuse(
            node, f"has {steps} steps; at most {most_steps} are unrolled: bind a shorter sequence"
        )
    directions, hidden = recurrent_shape[0], recurrent_shape[1 if product else 2]
    functions = _functions(kind, directions, given)
    if functions is None:
        return graph.refuse(node, "has an activation that ONNX does not define")
    rows = graph.reshape(data, [steps * batch, width])
    order = given.get("direction", b"forward").decode()
    sequences, finals = [], []
    for index in range(directions):
        direction = Direction(
            graph,
            kind,
            batch,
            hidden,
            functions[index],
            given.get("clip"),
            "" if product else part_of(graph, recurrent, index, transposed=True),
            _state_bias(graph, bias, index, hidden, kind, given),
            _peepholes(graph, peepholes, index, hidden),
            bool(given.get("linear_before_reset")),
            bool(given.get("input_forget")),
            product and functools.partial(_of_state, product, recurrent, index),
        )
        if product:
            products = product(rows, weights, index)
        else:
            products = graph.op("MatMul", [rows, part_of(graph, weights, index, transposed=True)])
        if bias:
            offset = _input_bias(graph, bias, index, hidden, kind, given)
            products = graph.op("Add", [products, offset])
        state = State(
            _first(graph, first_hidden, index, given), _first(graph, first_cell, index, given)
        )
        places = range(steps)
        if order == "reverse" or index == 1:
            places = reversed(places)
        sequence = {}
        for step in places:
            at = products
            if steps > 1:
                taken = np.arange(step * batch, (step + 1) * batch)
                at = graph.op("Gather", [products, graph.constant(taken, np.int64)], axis=0)
            mask = _mask(graph, lengths, step, steps, batch)
            new = direction.step(at, state)
            sequence[step], state = _masked(graph, mask, new, state, batch, hidden)
        sequences.append([sequence[step] for step in range(steps)])
        finals.append(_zero_if_empty(graph, lengths, state, batch))
    _write_sequence(graph, node, sequences, given, [steps, batch, hidden])
    ends = [[state.hidden for state in finals], [state.cell for state in finals]]
    for name, values in zip(node.output[1:], ends, strict=False):
        _write_last_states(graph, name, values, given, [batch, hidden])
    return True


def _of_state(product: Product, recurrent: str, index: int, state: str) -> str:
    return product(state, recurrent, index)


def _functions(
    kind: str, directions: int, given: dict[str, object]
) -> list[list[Activation]] | None:
    """Activation functions of each direction; None if one is unknown."""
    named = [name.decode() for name in given.get("activations", [])]
    named = named or DEFAULTS[kind] * directions
    alphas = list(given.get("activation_alpha", []))
    betas = list(given.get("activation_beta", []))
    found = [activation(name, alphas, betas) for name in named]
    count = len(DEFAULTS[kind])
    if None in found or len(found) < count * directions:
        return None
    return [found[count * index : count * (index + 1)] for index in range(directions)]


def part_of(graph: GraphBuilder, name: str, index: int, transposed: bool = False) -> str:
    """One direction's part of a tensor, without the axis of directions."""
    shape = graph.shape(name)
    part = name if shape[0] == 1 else graph.fold_slice(name, 0, index, index + 1)
    part = graph.fold("Reshape", [part, graph.constant(shape[1:], np.int64)])
    return graph.fold("Transpose", [part], perm=[1, 0]) if transposed else part


def _input_bias(
    graph: GraphBuilder, bias: str, index: int, hidden: int, kind: str, given: dict[str, object]
) -> str:
    """Bias of the inputs' products: both of ONNX's biases, unless a GRU adds one elsewhere."""
    part, size = part_of(graph, bias, index), _GATES[kind] * hidden
    first = graph.fold_slice(part, 0, 0, size)
    second = graph.fold_slice(part, 0, size, 2 * size)
    if kind == "GRU" and given.get("linear_before_reset"):
        zeros = graph.constant(np.zeros(hidden, graph.dtype(bias)))
        second = graph.fold("Concat", [graph.fold_slice(second, 0, 0, 2 * hidden), zeros], axis=0)
    return graph.fold("Add", [first, second])


def _state_bias(
    graph: GraphBuilder, bias: str, index: int, hidden: int, kind: str, given: dict[str, object]
) -> str | None:
    if kind != "GRU" or not given.get("linear_before_reset") or not bias:
        return None
    part = graph.fold_slice(part_of(graph, bias, index), 0, 5 * hidden, 6 * hidden)
    return graph.fold("Reshape", [part, graph.constant([1, hidden], np.int64)])


def _peepholes(graph: GraphBuilder, name: str, index: int, hidden: int) -> list[str] | None:
    if not name:
        return None
    part = part_of(graph, name, index)
    return [graph.fold_slice(part, 0, i * hidden, (i + 1) * hidden) for i in range(3)]


def _first(graph: GraphBuilder, name: str, index: int, given: dict[str, object]) -> str | None:
    """A direction's initial state, (batch, hidden); None for zeros."""
    if not name:
        return None
    value = graph.value(name)
    if value is not None and not value.any():
        return None
    if given.get("layout"):
        name = graph.fold("Transpose", [name], perm=[1, 0, 2])
    return part_of(graph, name, index)


def _mask(graph: GraphBuilder, lengths: str, step: int, steps: int, batch: int) -> str | None:
    """Which sequences still run at a step, (batch, 1); None if all do."""
    if not lengths:
        return None
    known = graph.value(lengths)
    if known is None:
        at = graph.constant(np.array(step, graph.dtype(lengths)))
        return graph.reshape(graph.op("Less", [at, lengths]), [batch, 1])
    if (known >= steps).all():
        return None
    return graph.constant((step < known).reshape(batch, 1))


def _masked(
    graph: GraphBuilder, mask: str | None, new: State, old: State, batch: int, hidden: int
) -> tuple[str, State]:
    """Output and state of a step at which some sequences may have ended."""
    if mask is None:
        return new.hidden, new
    zeros = graph.constant(np.zeros((batch, hidden), graph.dtype(new.hidden)))
    output = graph.op("Where", [mask, new.hidden, zeros])
    kept = [
        None if after is None else graph.op("Where", [mask, after, before or zeros])
        for after, before in ((new.hidden, old.hidden), (new.cell, old.cell))
    ]
    return output, State(*kept)


def _write_sequence(
    graph: GraphBuilder,
    node: NodeProto,
    sequences: list[list[str]],
    given: dict[str, object],
    sizes: list[int],
) -> None:
    """Write the outputs of all steps: (steps, directions, batch, hidden), or batch first."""
    name = node.output[0] if node.output else ""
    if not name:
        return
    steps, batch, hidden = sizes
    layout = given.get("layout")
    both = [graph.concat(each, 0) for each in sequences]
    last = None if layout or len(both) > 1 else name
    both = [graph.reshape(each, [steps, 1, batch, hidden], last) for each in both]
    if len(both) > 1:
        both = [graph.op("Concat", both, None if layout else name, axis=1)]
    if layout:
        graph.transpose(both[0], [2, 0, 1, 3], name)


def _zero_if_empty(graph: GraphBuilder, lengths: str, state: State, batch: int) -> State:
    """The last state of each sequence; zeros for an empty one, as in onnxruntime."""
    if not lengths:
        return state
    is_none = graph.op("Equal", [lengths, graph.constant(0, np.int32)])
    is_none = graph.reshape(is_none, [batch, 1])

    def ended(value: str | None) -> str | None:
        return value and graph.op("Where", [is_none, graph.constant(0, graph.dtype(value)), value])

    return State(ended(state.hidden), ended(state.cell))


def _write_last_states(
    graph: GraphBuilder, name: str, values: list[str], given: dict[str, object], sizes: list[int]
) -> None:
    """Write the states after the last step: (directions, batch, hidden), or batch first."""
    if not name:
        return
    axis = 1 if given.get("layout") else 0
    shape = [*sizes]
    shape.insert(axis, 1)
    last = name if len(values) == 1 else None
    values = [graph.reshape(value, shape, last) for value in values]
    if len(values) > 1:
        graph.op("Concat", values, name, axis=axis)


HANDLERS: dict[tuple[str, str], Handler] = {("", kind): _expand for kind in _GATES}
