"""LSTM, GRU and RNN of static length: unrolled, or left to one kernel for all steps.

The products of all steps' inputs are one matrix product. The product of the state with the
recurrent weights has the same shape at every step: it is one task. A step gathers its rows of the
inputs' products by an index that the kernel reads, so one kernel serves all steps. A slice would be
another kernel for each step.

The kernel for all steps (`fewtune.model.converters.recurrent`) supports what exporters
write: default activations, sequences of one length, constant weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from fewtune.onnx_graph.graph import all_nodes, attributes_of, optional
from fewtune.onnx_graph.operators.builder import MICROSOFT, GraphBuilder, Handler, Scope

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
_INPUTS = 8
_QUANTIZED = "DynamicQuantizeLSTM"
# Each step is five nodes and two to four kernels.
_MOST_STEPS = 2000
# The kernel reads the weights once for each sequence. For more sequences, an unrolled layer has
# matrix products, which read them once.
_MOST_SEQUENCES = 4
# No exporter writes peepholes, and onnxruntime does not run batches first.
_REFUSED = ("activation_alpha", "activation_beta", "clip", "input_forget", "layout")


@dataclass
class _Layer:
    """An LSTM, GRU or RNN; its inputs by their names in ONNX's definition.

    The states of a direction are tensors of (batch, hidden): the hidden state, and an LSTM's cell.
    """

    graph: GraphBuilder
    node: NodeProto

    def __post_init__(self) -> None:
        self.kind, self.given = self.node.op_type, attributes_of(self.node)
        # Parts of the weights, once for all steps.
        self.operands: dict[tuple[str, int], str] = {}
        names = optional(self.node.input, _INPUTS)
        self.x, self.w, self.r, self.b, self.lengths, *self.first, _ = names

    def expand(self) -> bool:
        """Write all steps; False if the layer is refused."""
        graph, node = self.graph, self.node
        shape, weights = graph.shape(self.x), graph.shape(self.r)
        if shape is None or weights is None:
            return graph.refuse(
                node, "reads a sequence whose shape is not known before the model runs"
            )
        reason = _refused(node)
        if reason:
            return graph.refuse(node, reason)
        self.steps, self.batch, width = shape
        if self.steps > _MOST_STEPS:
            return graph.refuse(
                node,
                f"has {self.steps} steps; at most {_MOST_STEPS} are unrolled: bind a shorter "
                "sequence",
            )
        directions, self.hidden = weights[0], min(weights[1:])
        self.zeros = graph.constant(np.zeros((self.batch, self.hidden), graph.dtype(self.x)))
        known = graph.value(self.lengths) if self.lengths else np.array(self.steps)
        self.is_whole = known is not None and bool((known >= self.steps).all())
        rows = graph.reshape(self.x, [self.steps * self.batch, width])
        runs = [self._run(index, rows) for index in range(directions)]
        sequence, *lasts = optional(node.output, 3)
        if sequence:
            joined = [graph.concat(outputs, 0) for outputs, _ in runs]
            self._write(sequence, joined, 1, [self.steps, 1, self.batch, self.hidden])
        ends = zip(*(states for _, states in runs), strict=True)
        for name, values in zip(lasts, ends, strict=False):
            if name:
                self._write(name, values, 0, [1, self.batch, self.hidden])
        return True

    def _run(self, index: int, rows: str) -> tuple[list[str], list[str]]:
        """Outputs of a direction's steps, in the order of the sequence, and its last states."""
        graph = self.graph
        step_of = {"RNN": self._rnn, "GRU": self._gru, "LSTM": self._lstm}[self.kind]
        products = self.product(rows, self.w, index)
        if self.b:
            products = graph.op("Add", [products, self._input_bias(index)])
        count = 2 if self.kind == "LSTM" else 1
        states = [self._first(name, index) for name in self.first[:count]]
        is_reversed = index == 1 or self.given.get("direction") == b"reverse"
        outputs = {}
        for step in reversed(range(self.steps)) if is_reversed else range(self.steps):
            at = products
            if self.steps > 1:
                taken = np.arange(step * self.batch, (step + 1) * self.batch)
                at = graph.op("Gather", [products, graph.constant(taken, np.int64)], axis=0)
            new = step_of(at, states, index)
            outputs[step], states = self._masked(step, new, states)
        return [outputs[step] for step in range(self.steps)], states

    def product(self, rows: str, weights: str, index: int) -> str:
        """Multiply rows, (rows, inputs), by the weights of one direction."""
        if (weights, index) not in self.operands:
            self.operands[weights, index] = part_of(self.graph, weights, index, transposed=True)
        # The product of a first state of zeros is known.
        return self.graph.fold("MatMul", [rows, self.operands[weights, index]])

    def _rnn(self, given: str, states: list[str], index: int) -> list[str]:
        op = self.graph.op
        return [op("Tanh", [op("Add", [self.product(states[0], self.r, index), given])])]

    def _gru(self, given: str, states: list[str], index: int) -> list[str]:
        op, (hidden,) = self.graph.op, states
        product = self.product(hidden, self.r, index)
        update, reset = (
            op("Sigmoid", [op("Add", [self._gate(given, gate), self._gate(product, gate)])])
            for gate in range(2)
        )
        kept = self._gate(product, 2)
        if self.b:
            kept = op("Add", [kept, self._state_bias(index)])
        new = op("Tanh", [op("Add", [self._gate(given, 2), op("Mul", [reset, kept])])])
        fresh = op("Mul", [op("Sub", [1, update]), new])
        return [op("Add", [fresh, op("Mul", [update, hidden])])]

    def _lstm(self, given: str, states: list[str], index: int) -> list[str]:
        op, (hidden, cell) = self.graph.op, states
        gates = op("Add", [self.product(hidden, self.r, index), given])
        entry, output, forget = (op("Sigmoid", [self._gate(gates, gate)]) for gate in range(3))
        new = op("Tanh", [self._gate(gates, 3)])
        cell = op("Add", [op("Mul", [forget, cell]), op("Mul", [entry, new])])
        return [op("Mul", [output, op("Tanh", [cell])]), cell]

    def _gate(self, gates: str, index: int) -> str:
        return self.graph.slice(gates, 1, index * self.hidden, (index + 1) * self.hidden)

    def _input_bias(self, index: int) -> str:
        """Bias of the inputs' products: both of ONNX's biases, unless a GRU adds one elsewhere."""
        graph, size = self.graph, GATES[self.kind] * self.hidden
        part = part_of(graph, self.b, index)
        first = graph.slice(part, 0, 0, size)
        second = graph.slice(part, 0, size, 2 * size)
        if self.kind == "GRU":
            zeros = graph.constant(np.zeros(self.hidden, graph.dtype(self.b)))
            kept = graph.slice(second, 0, 0, 2 * self.hidden)
            second = graph.fold("Concat", [kept, zeros], axis=0)
        return graph.fold("Add", [first, second])

    def _state_bias(self, index: int) -> str:
        part = part_of(self.graph, self.b, index)
        return self.graph.slice(part, 0, 5 * self.hidden, 6 * self.hidden)

    def _first(self, name: str, index: int) -> str:
        """A direction's initial state; zeros for an empty sequence, as in onnxruntime."""
        if not name:
            return self.zeros
        graph, state = self.graph, part_of(self.graph, name, index)
        if self.is_whole:
            return state
        is_none = graph.reshape(graph.op("Equal", [self.lengths, 0]), [self.batch, 1])
        return graph.op("Where", [is_none, self.zeros, state])

    def _masked(self, step: int, new: list[str], old: list[str]) -> tuple[str, list[str]]:
        """Output and states of a step at which some sequences may have ended."""
        graph = self.graph
        if self.is_whole:
            return new[0], new
        mask = graph.reshape(graph.op("Less", [step, self.lengths]), [self.batch, 1])
        states = [graph.op("Where", [mask, *both]) for both in zip(new, old, strict=True)]
        return graph.op("Where", [mask, new[0], self.zeros]), states

    def _write(self, name: str, parts: Sequence[str], axis: int, shape: list[int]) -> None:
        """Write an output that joins both directions' parts."""
        last = name if len(parts) == 1 else None
        parts = [self.graph.reshape(part, shape, last) for part in parts]
        if last is None:
            self.graph.op("Concat", parts, name, axis=axis)


def part_of(graph: GraphBuilder, name: str, index: int, transposed: bool = False) -> str:
    """One direction's part of a tensor, without the axis of directions."""
    shape = graph.shape(name)
    part = name if shape[0] == 1 else graph.slice(name, 0, index, index + 1)
    part = graph.fold("Reshape", [part, graph.constant(shape[1:], np.int64)])
    return graph.fold("Transpose", [part], perm=[1, 0]) if transposed else part


def _unroll(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    return _Layer(graph, node).expand()


def has_layers(model: ModelProto) -> bool:
    """Whether a model has recurrent layers."""
    return any(node.op_type in GATES for node in all_nodes(model.graph))


def _unroll_without_kernel(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    return not has_kernel(graph, node) and _unroll(graph, node, scope)


def _quantized(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    is_known = has_kernel(graph, node)
    return not is_known and graph.refuse(node, "is of a form that its kernel does not compute")


def _refused(node: NodeProto) -> str:
    """Why a layer is none that exporters write; empty if it is."""
    given, kind = attributes_of(node), "LSTM" if node.op_type == _QUANTIZED else node.op_type
    if optional(node.input, _INPUTS)[-1] or any(given.get(name) for name in _REFUSED):
        return f"has peepholes, or one of {', '.join(_REFUSED)}"
    names = [name.decode().capitalize() for name in given.get("activations", [])]
    if names and names != _DEFAULTS[kind] * (len(names) // len(_DEFAULTS[kind])):
        return "has other activations than ONNX's defaults"
    if kind == "GRU" and not given.get("linear_before_reset"):
        return "resets its state before it multiplies it (linear_before_reset is 0)"
    return ""


def has_kernel(graph: GraphBuilder, node: NodeProto) -> bool:
    """Whether one kernel computes all steps of this layer."""
    is_quantized = node.op_type == _QUANTIZED
    data, *weights, lengths, hidden, cell, _ = optional(node.input, _INPUTS)
    shape = graph.shape(data)
    if shape is None or _refused(node):
        return False
    steps, batch, _ = shape
    is_faster_unrolled = steps == 1 or batch > _MOST_SEQUENCES
    if steps > _MOST_STEPS or (is_faster_unrolled and not is_quantized):
        return False
    known = graph.value(lengths) if lengths else np.array(steps)
    if known is None or (known < steps).any():
        return False
    # Behind the weights of a quantised layer are their scales and zero points.
    scales = optional(node.input[_INPUTS:], 4)
    zeros = [graph.value(name) for name in scales[1::2] if name]
    if any(each is not None and each.any() for each in zeros):
        return False
    constants = [*weights, *scales]
    *products, bias = weights
    kinds = dict.fromkeys(filter(None, [data, bias, hidden, cell]), TensorProto.FLOAT)
    kinds |= dict.fromkeys(products, TensorProto.INT8 if is_quantized else TensorProto.FLOAT)
    return all(graph.element_type(name) == kind for name, kind in kinds.items()) and all(
        graph.value(name) is not None for name in constants if name
    )


# A quantised layer has no other form than its kernel.
_IN_KERNEL_ONLY: dict[str, Handler] = {f"{MICROSOFT}.{_QUANTIZED}": _quantized}
UNROLLED: dict[str, Handler] = dict.fromkeys(GATES, _unroll) | _IN_KERNEL_ONLY
UNROLLED_WITHOUT_KERNEL: dict[str, Handler] = (
    dict.fromkeys(GATES, _unroll_without_kernel) | _IN_KERNEL_ONLY
)
