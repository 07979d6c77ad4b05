"""Recurrent layers as one kernel for all steps, quantized LSTMs too; its threads start once."""

# ruff: noqa: ANN001, ANN202, B023 (of the macros, which are TVMScript: they are parsed, not run)

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from tvm.script import tirx as T  # noqa: N812 (TVMScript's own name, which its parser expects)

from fewtune.model.passes.integer_products import WORD, packed, word
from fewtune.model.passes.relax_calls import FLOAT, OPAQUE, extents_of, text_attribute
from fewtune.onnx_graph.operators.recurrent import GATES
from fewtune.onnx_graph.quantized.affine import MOST_OF_BYTE
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.dot_products import dot4
from fewtune.runtime.executable import IS_SCHEDULED
from fewtune.runtime.tvm import relax, tvm
from fewtune.tvm_compat.onnx_importer import Converter
from fewtune.tvm_compat.values import array_of, known_array

# Attributes of TVM's code generator for CPUs: start all threads once for a statement, and let
# threads wait for each other after one.
_LAUNCH, _BARRIER = "pragma_parallel_launch_point", "pragma_parallel_barrier_when_finish"
# The code generator ignores an attribute of this name.
_IGNORED = "fewtune.as_it_is"
# The time in which threads wait for each other, in bytes that a core reads from its own cache.
_WAIT_BYTES = 2**18
# Bytes of weights that stay in a core's cache from step to step. A core reads much larger weights
# at most so many times slower.
_RESIDENT_BYTES, _MOST_SLOWDOWN = 2**20, 5
# TVM takes larger buffers, and those of another scope than "global", from its pool. LLVM stores to
# such in every step of a sum. Sums of floats gain more by being many (an EPYC (Zen 5)).
_STACK_BYTES = 1023


class Recurrence(NamedTuple):
    """A recurrent layer with ONNX's default activations.

    Attributes
    ----------
    kind : {"LSTM", "GRU", "RNN"}
        A GRU multiplies the state before it resets it (ONNX's ``linear_before_reset`` is 1).
    steps, batch, directions : int
    hidden : int
        Values of a state, padded to whole vectors.
    is_reverse : bool
        Whether the only direction begins with the last step.
    is_quantized : bool
        Whether the recurrent weights are signed bytes, as an LSTM's may be; then each step
        quantizes the state by its range.
    padding : int
        How many of the ``hidden`` values only fill the last vector.
    """

    kind: str
    steps: int
    batch: int
    directions: int
    hidden: int
    is_reverse: bool = False
    is_quantized: bool = False
    padding: int = 0

    @property
    def depth(self) -> int:
        """Products of a sum: of words of four bytes in a quantized layer."""
        return self.hidden // WORD if self.is_quantized else self.hidden

    def tile(self, traits: CpuTraits) -> tuple[int, int]:
        """The register tile of the products: sequences, and values of their states."""
        held = _STACK_BYTES // traits.vector_bytes if self.is_quantized else traits.registers
        most = min(traits.registers, held) // GATES[self.kind]
        rows = max(each for each in range(1, most + 1) if self.batch % each == 0)
        steps = (each for each in (4, 2, 1) if self.depth % each == 0)
        return rows, next(each for each in steps if each * rows <= most)

    def workers(self, threads: int) -> int:
        """Threads that share each step of a direction. If it is 1, directions run in parallel."""
        size = self.hidden * GATES[self.kind] * self.hidden * (1 if self.is_quantized else 4)
        alone = _reading(size) * -(-self.directions // threads)
        shared = (_WAIT_BYTES + _reading(size / threads)) * self.directions
        return threads if shared < alone else 1

    def place(self, step: Any, d: Any) -> Any:
        """The index in the sequence of a direction's step."""
        if self.directions == 1:
            return self.steps - 1 - step if self.is_reverse else step
        return step + d * (self.steps - 1 - 2 * step)


def _reading(size: float) -> float:
    """Time to read weights at every step, in bytes that a core reads from its own cache."""
    return size * min(max(1.0, size / _RESIDENT_BYTES), _MOST_SLOWDOWN)


def kernel(layer: Recurrence, traits: CpuTraits) -> tvm.tirx.PrimFunc:
    """The scheduled kernel of a layer.

    It reads, in this order:

    - the products of all inputs with their weights, plus the biases: shape (steps x batch,
      directions x gates x hidden);
    - the recurrent weights: shape (directions, panels, hidden x gates, lanes), where a panel
      belongs to one vector of a state's values; quantized ones in words, a quarter as many;
    - the bias that a GRU resets: shape (directions, hidden); or the scales of quantized weights
      and, behind them, their sums: shape (directions, 2 x gates x hidden);
    - the first state, and the first cell: shape (directions, batch, hidden).

    It writes the last cell, shape (directions, batch, hidden), and the states of all steps, shape
    (steps, directions, batch, hidden).

    A panel belongs to the same thread at every step, so its weights stay in that core's cache.
    """
    kind, steps, batch, directions, hidden, _, is_quantized, padding = layer
    gates, lanes = GATES[kind], traits.lanes("float32")
    panels, width = hidden // lanes, gates * hidden
    dtype, extra, dot = ("int32", 2 * width, traits.dot) if is_quantized else (FLOAT, hidden, "")
    rows, unrolled = layer.tile(traits)
    workers = layer.workers(traits.threads)
    share = -(-panels // workers)
    launch, barrier = (_LAUNCH, _BARRIER) if workers > 1 else (_IGNORED, _IGNORED)
    direction_loop = T.parallel if workers == 1 < min(directions, traits.threads) else T.serial
    worker_loop = T.parallel if workers > 1 else T.serial
    multiply = _multiplication((rows, unrolled, gates, lanes), layer.depth, dot)
    advance = _advance(layer, lanes)
    quantize = _quantization(batch, panels, lanes)

    @T.macro
    def advance_share(given, weights, extras, state, states, cell, step, d, worker):  # type: ignore[no-untyped-def]
        with T.sblock("share"):
            sums = T.sblock_alloc_buffer((rows, unrolled, gates, lanes), dtype)
            known = T.sblock_alloc_buffer((batch, hidden), "float32", scope="local")
            whole = T.sblock_alloc_buffer((batch, hidden), "uint8")
            # Other cores wrote parts of the state: it is read at once, not line by line between
            # multiplications.
            for row in T.serial(batch):
                for q in T.unroll(panels):
                    for lane in T.vectorized(lanes):
                        # The padding is NaN after an infinite input.
                        known[row, q * lanes + lane] = T.Select(
                            q * lanes + lane < hidden - padding,
                            state[d, step % 2, row, q * lanes + lane],
                            T.float32(0),
                        )
            # A quantized state's scale, and its zero point.
            scale = T.sblock_alloc_buffer((2,), "float32")
            if is_quantized:
                ends = T.sblock_alloc_buffer((2, lanes), "float32")
                quantize(known, whole, ends, scale)
            for q in T.serial(T.min(share, panels - worker * share)):
                for tile in T.serial(batch // rows):
                    multiply(sums, weights, known, whole, d, worker * share + q, tile)
                    for b in T.unroll(rows):
                        advance(
                            sums, given, extras, scale, state, states, cell,
                            step, d, worker * share + q, tile * rows + b, b,
                        )  # fmt: skip

    @T.prim_func(s_tir=True)
    def recurrence(
        given: T.Buffer((steps * batch, directions * width), "float32"),
        weights: T.Buffer((directions, panels, layer.depth * gates, lanes), dtype),
        extras: T.Buffer((directions, extra), "float32"),
        first: T.Buffer((directions, batch, hidden), "float32"),
        first_cell: T.Buffer((directions, batch, hidden), "float32"),
        cell: T.Buffer((directions, batch, hidden), "float32"),
        states: T.Buffer((steps, directions, batch, hidden), "float32"),
    ) -> None:
        T.func_attr({"tirx.noalias": True, "op_pattern": OPAQUE, IS_SCHEDULED: True})
        with T.sblock("recurrence"):
            # A step reads one of the two buffers of a state, and writes the other.
            state = T.sblock_alloc_buffer((directions, 2, batch, hidden), "float32")
            for d in T.serial(directions):
                for b in T.serial(batch):
                    for i in T.serial(hidden):
                        state[d, 0, b, i] = first[d, b, i]
                        cell[d, b, i] = first_cell[d, b, i]
            with T.attr(0, launch, 1):
                for d in direction_loop(directions):
                    for step in T.serial(steps):
                        with T.attr(0, barrier, 1):
                            for worker in worker_loop(workers):
                                advance_share(
                                    given, weights, extras, state, states, cell, step, d, worker
                                )

    return recurrence


def _advance(layer: Recurrence, lanes: int) -> Any:
    """A macro that computes the next cell and state of one vector, from the sums of its gates."""
    batch, hidden, gates = layer.batch, layer.hidden, GATES[layer.kind]
    cell_after, state_after = CELLS[layer.kind]

    def entered(given: Any, step: Any, d: Any, row: Any, g: Any, i: Any) -> Any:
        """A gate's product with the input."""
        return given[layer.place(step, d) * batch + row, (d * gates + g) * hidden + i]

    def product(sums: Any, extras: Any, scale: Any, b: Any, d: Any, g: Any, p: Any, i: Any) -> Any:
        """A gate's product with the state."""
        if not layer.is_quantized:
            return sums[b, 0, g, i]
        place = g * hidden + p * lanes + i
        zeros = T.Cast("int32", scale[1]) * T.Cast("int32", extras[d, gates * hidden + place])
        return T.Cast(FLOAT, sums[b, 0, g, i] - zeros) * (scale[0] * extras[d, place])

    @T.macro
    def advance(sums, given, extras, scale, state, states, cell, step, d, p, row, b):  # type: ignore[no-untyped-def]
        for lane in T.vectorized(lanes):
            cell[d, row, p * lanes + lane] = cell_after(
                lambda g: product(sums, extras, scale, b, d, g, p, lane),
                lambda g: entered(given, step, d, row, g, p * lanes + lane),
                cell[d, row, p * lanes + lane],
            )
        for lane in T.vectorized(lanes):
            state[d, (step + 1) % 2, row, p * lanes + lane] = state_after(
                lambda g: product(sums, extras, scale, b, d, g, p, lane),
                lambda g: entered(given, step, d, row, g, p * lanes + lane),
                extras[d, p * lanes + lane],
                state[d, step % 2, row, p * lanes + lane],
                cell[d, row, p * lanes + lane],
            )
        for lane in T.vectorized(lanes):
            states[layer.place(step, d), d, row, p * lanes + lane] = state[
                d, (step + 1) % 2, row, p * lanes + lane
            ]

    return advance


def _multiplication(tile_of: tuple[int, int, int, int], depth: int, dot: str) -> Any:
    """A macro that multiplies states by a panel of the recurrent weights, into ``sums[:, 0]``.

    Quantized ones are multiplied in words, if there is a form ``dot`` of `dot4`.
    """
    rows, unrolled, gates, lanes = tile_of

    def product(known: Any, whole: Any, row: Any, k: Any, weight: Any) -> Any:
        return dot4(dot, word(whole, [row], k * WORD), weight) if dot else known[row, k] * weight

    @T.macro
    def multiply(sums, weights, known, whole, d, p, tile):  # type: ignore[no-untyped-def]
        for b in T.unroll(rows):
            for u in T.unroll(unrolled):
                for g in T.unroll(gates):
                    for lane in T.vectorized(lanes):
                        sums[b, u, g, lane] = T.Cast(sums.dtype, 0)
        for k in T.serial(depth // unrolled):
            for u in T.unroll(unrolled):
                for b in T.unroll(rows):
                    for g in T.unroll(gates):
                        for lane in T.vectorized(lanes):
                            sums[b, u, g, lane] = sums[b, u, g, lane] + product(
                                known, whole, tile * rows + b, k * unrolled + u,
                                weights[d, p, (k * unrolled + u) * gates + g, lane],
                            )  # fmt: skip
        for b in T.unroll(rows):
            for g in T.unroll(gates):
                for u in T.unroll(unrolled - 1):
                    for lane in T.vectorized(lanes):
                        sums[b, 0, g, lane] = sums[b, 0, g, lane] + sums[b, u + 1, g, lane]

    return multiply


def _quantization(batch: int, panels: int, lanes: int) -> Any:
    """A macro that quantizes states by their range, as ONNX's DynamicQuantizeLinear does.

    It writes the bytes, their scale and their zero point.
    """

    def byte_of(value: Any, scale: Any) -> Any:
        moved = T.nearbyint(value / scale[0]) + scale[1]
        return T.Cast("uint8", T.min(T.max(moved, T.float32(0)), T.float32(MOST_OF_BYTE)))

    @T.macro
    def quantize(known, whole, ends, scale):  # type: ignore[no-untyped-def]
        for end in T.unroll(2):
            for lane in T.vectorized(lanes):
                ends[end, lane] = T.float32(0)
        for row in T.serial(batch):
            for q in T.serial(panels):
                for lane in T.vectorized(lanes):
                    ends[0, lane] = T.min(ends[0, lane], known[row, q * lanes + lane])
                for lane in T.vectorized(lanes):
                    ends[1, lane] = T.max(ends[1, lane], known[row, q * lanes + lane])
        for lane in T.serial(lanes - 1):
            ends[0, 0] = T.min(ends[0, 0], ends[0, lane + 1])
            ends[1, 0] = T.max(ends[1, 0], ends[1, lane + 1])
        scale[0] = (ends[1, 0] - ends[0, 0]) / T.float32(MOST_OF_BYTE)
        if scale[0] == T.float32(0):
            scale[0] = T.float32(1)
        scale[1] = T.min(T.nearbyint(-ends[0, 0] / scale[0]), T.float32(MOST_OF_BYTE))
        for row in T.serial(batch):
            for q in T.serial(panels):
                for lane in T.vectorized(lanes):
                    whole[row, q * lanes + lane] = byte_of(known[row, q * lanes + lane], scale)

    return quantize


# From the number of a gate to its value: its product with the state, or with the input plus the
# biases.
_Gates = Callable[[Any], Any]


def _lstm_cell(product: _Gates, given: _Gates, cell: Any) -> Any:
    entry, forget = (T.sigmoid(product(g) + given(g)) for g in (0, 2))
    return forget * cell + entry * T.tanh(product(3) + given(3))


def _lstm_state(product: _Gates, given: _Gates, _bias: Any, _state: Any, cell: Any) -> Any:
    return T.sigmoid(product(1) + given(1)) * T.tanh(cell)


def _no_cell(_product: _Gates, _given: _Gates, cell: Any) -> Any:
    return cell


def _gru_state(product: _Gates, given: _Gates, bias: Any, state: Any, _cell: Any) -> Any:
    update, reset = (T.sigmoid(product(g) + given(g)) for g in (0, 1))
    new = T.tanh(given(2) + reset * (product(2) + bias))
    return (T.float32(1) - update) * new + update * state


def _rnn_state(product: _Gates, given: _Gates, _bias: Any, _state: Any, _cell: Any) -> Any:
    return T.tanh(product(0) + given(0))


# The next cell and the next state.
CELLS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "LSTM": (_lstm_cell, _lstm_state),
    "GRU": (_no_cell, _gru_state),
    "RNN": (_no_cell, _rnn_state),
}


# The converters

_KERNEL = "recurrence"
# Places of the weights among a layer's inputs, and of their scales if it is quantized.
_WEIGHTS, _SCALES = (1, 2), (8, 10)


def is_recurrence(name: str) -> bool:
    """Whether a kernel of this name computes a recurrent layer."""
    return name.rstrip("0123456789") == _KERNEL


def converters(traits: CpuTraits) -> dict[str, Converter]:
    """Converters by operator, for a processor."""
    plain: dict[str, Converter] = {kind: partial(_converted, traits, kind) for kind in GATES}
    return plain | {"DynamicQuantizeLSTM": partial(_converted, traits, "LSTM")}


def _weights_of(inputs: list[Any]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The input's and the state's weights, and the scales of quantized ones.

    Of a direction, both have a row for each value of each gate; a quantized layer has them by
    columns, with one scale or one a column.
    """
    weights = [known_array(inputs[place]) for place in _WEIGHTS]
    if len(inputs) <= min(_SCALES):
        return weights, []
    weights = [np.moveaxis(each, 1, 2) for each in weights]
    scales = [known_array(inputs[place]).reshape(len(weights[0]), -1) for place in _SCALES]
    return weights, [
        np.broadcast_to(scale, each.shape[:2]) for scale, each in zip(scales, weights, strict=True)
    ]


def _converted(
    traits: CpuTraits, kind: str, bb: Any, inputs: list[Any], attributes: dict[str, Any], _: int
) -> relax.Expr:
    inputs = [*inputs, *[None] * (7 - len(inputs))]
    (own, recurrent), scales = _weights_of(inputs)
    bias = array_of(inputs[3])
    if bias is None:
        bias = np.zeros((len(own), 2 * own.shape[1]), np.float32)
    steps, batch, _ = extents_of(inputs[0])
    directions, _, hidden = recurrent.shape
    more = -hidden % traits.lanes(FLOAT)
    backward = text_attribute(attributes, "direction", "forward") == "reverse"
    layer = Recurrence(kind, steps, batch, directions, hidden + more, backward, bool(scales), more)
    own, recurrent, bias, *scales = (
        _padded(each, hidden, more) for each in (own, recurrent, bias, *scales)
    )
    # A product is less the zero point times the sums.
    scales += [recurrent.sum(3, dtype=np.int32)] if scales else []
    entered, extras = _entered(bb, inputs[0], layer, [own, bias, *scales])
    recurrent = _panels(recurrent, traits.lanes(FLOAT))
    arguments = [entered, relax.const(recurrent), _constant(extras)]
    arguments += [_initial(bb, value, layer, more) for value in inputs[5:7]]
    shapes = [(directions, batch, layer.hidden), (steps, directions, batch, layer.hidden)]
    types = [relax.TensorType(shape, FLOAT) for shape in shapes]
    name = bb.add_func(kernel(layer, traits), _KERNEL)
    outputs = bb.emit(relax.call_tir(name, relax.Tuple(arguments), types))
    cell, states = (bb.emit(relax.TupleGetItem(outputs, place)) for place in range(2))
    if more:
        cell, states = (
            bb.normalize(relax.op.strided_slice(each, [-1], [0], [hidden]))
            for each in (cell, states)
        )
    ends = [
        _step(bb, states, index, 0 if backward or index else steps - 1)
        for index in range(directions)
    ]
    last = ends[0] if len(ends) == 1 else bb.normalize(relax.op.concat(ends, axis=0))
    return relax.Tuple([states, last, cell])


def _entered(
    bb: Any, data: relax.Expr, layer: Recurrence, weights: list[np.ndarray]
) -> tuple[relax.Expr, np.ndarray]:
    """The products of all inputs plus the biases, and what else the kernel reads of each gate.

    ``weights`` are the inputs' weights, the biases, and of quantized weights the scales and sums.
    """
    own, bias, *scales = weights
    gates, directions = GATES[layer.kind], layer.directions
    added = bias[:, :gates] + bias[:, gates:]
    extras = np.zeros((directions, layer.hidden), np.float32)
    if layer.kind == "GRU":
        extras, added[:, 2] = bias[:, -1], bias[:, 2]
    columns = np.moveaxis(own, 3, 0).reshape(own.shape[3], -1)
    rows = bb.normalize(relax.op.reshape(data, (layer.steps * layer.batch, len(columns))))
    if scales:
        extras = np.concatenate(scales[1:], axis=1).reshape(directions, -1)
        product = _quantized_product(bb, rows, columns, scales[0])
    else:
        product = bb.normalize(relax.op.matmul(rows, _constant(columns)))
    return bb.normalize(relax.op.add(product, _constant(added.reshape(1, -1)))), extras


def _padded(array: np.ndarray, hidden: int, more: int) -> np.ndarray:
    """An array with an axis of gates, each padded with zeros to whole vectors.

    No other value depends on those of the padding.
    """
    gated = array.reshape(len(array), -1, hidden, *array.shape[2:])
    return np.pad(gated, [(0, 0), (0, 0), (0, more)] + [(0, 0)] * (gated.ndim - 3))


def _constant(array: np.ndarray) -> relax.Expr:
    return relax.const(np.ascontiguousarray(array, FLOAT))


def _initial(bb: Any, value: relax.Expr | None, layer: Recurrence, more: int) -> relax.Expr:
    """A first state or cell; zeros unless given."""
    if value is None:
        return _constant(np.zeros((layer.directions, layer.batch, layer.hidden), np.float32))
    return bb.normalize(relax.op.nn.pad(value, [0, 0, 0, 0, 0, more])) if more else value


def _panels(recurrent: np.ndarray, lanes: int) -> np.ndarray:
    """Arrange recurrent weights in panels, one for each vector of a state's values.

    From shape (directions, gates, padded hidden, hidden) to (directions, panels, padded hidden x
    gates, lanes); bytes are packed into words.
    """
    directions, gates, hidden, values = recurrent.shape
    columns = np.pad(recurrent, [(0, 0), (0, 0), (0, 0), (0, hidden - values)]).swapaxes(2, 3)
    if columns.dtype == np.int8:
        columns = packed(columns, lanes)
    panels = columns.reshape(directions, gates, -1, hidden // lanes, lanes).transpose(0, 3, 2, 1, 4)
    return np.ascontiguousarray(panels).reshape(directions, hidden // lanes, -1, lanes)


def _step(bb: Any, states: relax.Expr, direction: int, step: int) -> relax.Expr:
    """The state of a direction after a step, shape (1, batch, hidden)."""
    _, _, batch, hidden = extents_of(states)
    part = relax.op.strided_slice(states, [0, 1], [step, direction], [step + 1, direction + 1])
    return bb.normalize(relax.op.reshape(bb.normalize(part), (1, batch, hidden)))


def _quantized_product(
    bb: Any, rows: relax.Expr, columns: np.ndarray, scales: np.ndarray
) -> relax.Expr:
    """The float32 product of rows, which are quantized by their range, with integers.

    The rows have one range, as in ONNX's DynamicQuantizeLinear; the columns have a scale each.
    """
    op = relax.op

    def emit(operator: Any, *given: Any, **more: Any) -> relax.Expr:
        return bb.emit(operator(*given, **more))

    zero, one, most = (relax.const(each, FLOAT) for each in (0.0, 1.0, MOST_OF_BYTE))
    high = emit(op.maximum, emit(op.max, rows), zero)
    low = emit(op.minimum, emit(op.min, rows), zero)
    width = emit(op.subtract, high, low)
    scale = emit(op.where, emit(op.equal, width, zero), one, emit(op.divide, width, most))
    place = emit(op.round, emit(op.divide, emit(op.negative, low), scale))
    place = emit(op.minimum, place, most)
    whole = emit(op.add, emit(op.round, emit(op.divide, rows, scale)), place)
    whole = emit(op.minimum, emit(op.maximum, whole, zero), most)
    factor = emit(op.multiply, scale, relax.const(scales.reshape(1, -1)))
    # The product of the zero point is subtracted afterwards.
    integers = relax.const(np.ascontiguousarray(columns))
    sums = emit(op.matmul, emit(op.astype, whole, "uint8"), integers, out_dtype="int32")
    totals = relax.const(columns.sum(0, keepdims=True, dtype=np.int32))
    moved = emit(op.multiply, emit(op.astype, place, "int32"), totals)
    sums = emit(op.astype, emit(op.subtract, sums, moved), FLOAT)
    return emit(op.multiply, sums, factor)
