"""One step of an LSTM, GRU or RNN in one direction, as plain nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fewtune.onnx_graph.operators.activations import Activation
from fewtune.onnx_graph.operators.builder import GraphBuilder


@dataclass
class State:
    """State of a direction between steps; None stands for zeros."""

    hidden: str | None
    cell: str | None = None


@dataclass
class Direction:
    """One direction of a layer, whose states are (batch, hidden).

    Attributes
    ----------
    graph : GraphBuilder
    kind : {"LSTM", "GRU", "RNN"}
    batch, hidden : int
    functions : list of callable
        Activations, in ONNX's order.
    clip : float or None
        Bound of the activations' inputs.
    recurrent : str
        Transposed recurrent weights, (hidden, gates x hidden).
    state_bias : str or None
        A GRU's bias of the hidden gate's recurrent product, (hidden,).
    peepholes : list of str or None
        An LSTM's weights from the cell to the gates i, o and f, (hidden,) each.
    reset_after, input_forget : bool
        ONNX's ``linear_before_reset`` of a GRU and ``input_forget`` of an LSTM.
    recurrent_product : callable or None
        Multiplies a state by the recurrent weights; a plain product unless given.
    """

    graph: GraphBuilder
    kind: str
    batch: int
    hidden: int
    functions: list[Activation]
    clip: float | None
    recurrent: str
    state_bias: str | None
    peepholes: list[str] | None
    reset_after: bool
    input_forget: bool
    recurrent_product: Callable[[str], str] | None = None

    def step(self, given: str, state: State) -> State:
        """The next state, from the product of a step's input, (batch, gates x hidden)."""
        return {"RNN": self._rnn, "GRU": self._gru, "LSTM": self._lstm}[self.kind](given, state)

    def _rnn(self, given: str, state: State) -> State:
        return State(self._activated(0, self._sum(given, state.hidden)))

    def _sum(self, given: str, hidden: str | None) -> str:
        if hidden is None:
            return given
        if self.recurrent_product is not None:
            product = self.recurrent_product(hidden)
        else:
            product = self.graph.op("MatMul", [hidden, self.recurrent])
        return self.graph.op("Add", [product, given])

    def _gru(self, given: str, state: State) -> State:
        op = self.graph.op
        update, reset, new = (self._gate(given, index) for index in range(3))
        hidden = state.hidden
        if self.reset_after:
            product = self.state_bias
            if hidden is not None:
                products = op("MatMul", [hidden, self.recurrent])
                update = op("Add", [update, self._gate(products, 0)])
                reset = op("Add", [reset, self._gate(products, 1)])
                product = self._gate(products, 2)
                if self.state_bias is not None:
                    product = op("Add", [product, self.state_bias])
            if product is not None:
                new = op("Add", [new, op("Mul", [self._activated(0, reset), product])])
        elif hidden is not None:
            graph, size = self.graph, self.hidden
            products = op("MatMul", [hidden, graph.fold_slice(self.recurrent, 1, 0, 2 * size)])
            update = op("Add", [update, self._gate(products, 0)])
            reset = op("Add", [reset, self._gate(products, 1)])
            kept = op("Mul", [self._activated(0, reset), hidden])
            weights = graph.fold_slice(self.recurrent, 1, 2 * size, 3 * size)
            new = op("Add", [op("MatMul", [kept, weights]), new])
        update, new = self._activated(0, update), self._activated(1, new)
        one = self.graph.constant(1, self.graph.dtype(given))
        result = op("Mul", [op("Sub", [one, update]), new])
        if hidden is not None:
            result = op("Add", [result, op("Mul", [update, hidden])])
        return State(result)

    def _lstm(self, given: str, state: State) -> State:
        op, cell = self.graph.op, state.cell
        gates = self._sum(given, state.hidden)
        entry, output, forget, new = (self._gate(gates, index) for index in range(4))
        new = self._activated(1, new)
        entry = self._activated(0, self._peeped(entry, 0, cell))
        result = op("Mul", [entry, new])
        if cell is not None:
            if self.input_forget:
                one = self.graph.constant(1, self.graph.dtype(given))
                forget = op("Sub", [one, entry])
            else:
                forget = self._activated(0, self._peeped(forget, 2, cell))
            result = op("Add", [op("Mul", [forget, cell]), result])
        output = self._activated(0, self._peeped(output, 1, result))
        return State(op("Mul", [output, self.functions[2](self.graph, result)]), result)

    def _peeped(self, gate: str, index: int, cell: str | None) -> str:
        if self.peepholes is None or cell is None:
            return gate
        return self.graph.op("Add", [gate, self.graph.op("Mul", [cell, self.peepholes[index]])])

    def _gate(self, gates: str, index: int) -> str:
        return self.graph.slice(gates, 1, index * self.hidden, (index + 1) * self.hidden)

    def _activated(self, function: int, value: str) -> str:
        if self.clip is not None:
            value = self.graph.clip(value, -self.clip, self.clip)
        return self.functions[function](self.graph, value)
