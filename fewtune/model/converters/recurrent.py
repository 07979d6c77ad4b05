"""Converters of recurrent layers that one kernel computes, quantized LSTMs among them."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fewtune.model.converters.recurrent_kernel import GATES, Recurrence, kernel
from fewtune.model.passes.relax_calls import FLOAT, extents_of, text_attribute
from fewtune.onnx_graph.quantized.affine import MOST_OF_BYTE
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import relax
from fewtune.tvm_compat.onnx_importer import Converter
from fewtune.tvm_compat.values import array_of, known_array

_KERNEL = "recurrence"
# Among a quantized layer's inputs: weights, and their scale; the zero point is behind that.
_OWN, _RECURRENT = (1, 8), (2, 10)


def is_recurrence(name: str) -> bool:
    """Whether a kernel of this name computes a recurrent layer."""
    return name.rstrip("0123456789") == _KERNEL


def converters(traits: CpuTraits) -> dict[str, Converter]:
    """Converters by operator, for a processor."""
    plain: dict[str, Converter] = {kind: partial(_converted, traits, kind) for kind in GATES}
    return plain | {"DynamicQuantizeLSTM": partial(_converted, traits, "LSTM")}


class _Weights(NamedTuple):
    """A layer's weights, of one gate after the other.

    Attributes
    ----------
    own, recurrent : numpy.ndarray
        Shape (directions, gates x hidden, inputs) and (directions, gates x hidden, hidden), of
        float32, or of int8 or int16 if the layer is quantized.
    bias : numpy.ndarray
        Shape (directions, 2 x gates x hidden).
    scales : list of numpy.ndarray
        Of quantized weights: both scales, shape (directions, gates x hidden).
    """

    own: np.ndarray
    recurrent: np.ndarray
    bias: np.ndarray
    scales: list[np.ndarray]


def _weights_of(inputs: list[Any]) -> _Weights:
    scales: list[np.ndarray] = []
    if len(inputs) <= _OWN[1]:
        own, recurrent = (known_array(inputs[place]) for place in (1, 2))
    else:
        (own, own_scale), (recurrent, recurrent_scale) = (
            _quantized(inputs, *places) for places in (_OWN, _RECURRENT)
        )
        scales = [own_scale, recurrent_scale]
    bias = array_of(inputs[3])
    if bias is None:
        bias = np.zeros((own.shape[0], 2 * own.shape[1]), np.float32)
    return _Weights(own, recurrent, bias, scales)


def _quantized(inputs: list[Any], place: int, scale_place: int) -> tuple[np.ndarray, np.ndarray]:
    """The weights of onnxruntime's quantized LSTM, less their zero points, and their scales."""
    weights = known_array(inputs[place]).astype(np.int16)
    directions, _, width = weights.shape
    zero = array_of(inputs[scale_place + 1])
    if zero is not None:
        weights = weights - zero.astype(np.int16).reshape(directions, 1, -1)
    is_narrow = np.array_equal(weights, weights.astype(np.int8))
    weights = weights.astype(np.int8 if is_narrow else np.int16)
    scale = known_array(inputs[scale_place]).reshape(directions, -1)
    return np.moveaxis(weights, 1, 2), np.broadcast_to(scale, (directions, width))


def _converted(
    traits: CpuTraits, kind: str, bb: Any, inputs: list[Any], attributes: dict[str, Any], _: int
) -> relax.Expr:
    inputs = [*inputs, *[None] * (7 - len(inputs))]
    given = _weights_of(inputs)
    steps, batch, _ = extents_of(inputs[0])
    directions, _, hidden = given.recurrent.shape
    more = -hidden % traits.lanes(FLOAT)
    order = text_attribute(attributes, "direction", "forward")
    sizes, dtype = (steps, batch, directions, hidden + more), given.recurrent.dtype.name
    layer = Recurrence(kind, *sizes, order == "reverse", dtype)
    entered, extras = _entered(bb, inputs[0], given, layer, hidden)
    recurrent = _panels(_padded(given.recurrent, hidden, more), traits.lanes(FLOAT))
    arguments = [entered, _constant(recurrent, dtype), _constant(extras)]
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
        _step(bb, states, index, 0 if order == "reverse" or index else steps - 1)
        for index in range(directions)
    ]
    last = ends[0] if len(ends) == 1 else bb.normalize(relax.op.concat(ends, axis=0))
    return relax.Tuple([states, last, cell])


def _entered(
    bb: Any, data: relax.Expr, given: _Weights, layer: Recurrence, hidden: int
) -> tuple[relax.Expr, np.ndarray]:
    """The products of all inputs plus the biases, and what else the kernel reads of each gate."""
    gates, directions, wide = GATES[layer.kind], layer.directions, layer.hidden
    more = wide - hidden
    biases = _padded(given.bias, hidden, more)
    added = biases[:, :gates] + biases[:, gates:]
    extras = np.zeros((directions, wide), np.float32)
    if layer.kind == "GRU":
        extras, added[:, 2] = biases[:, -1], biases[:, 2]
    own = _padded(given.own, hidden, more)
    columns = np.moveaxis(own, 3, 0).reshape(-1, directions * gates * wide)
    rows = bb.normalize(relax.op.reshape(data, (layer.steps * layer.batch, len(columns))))
    if given.scales:
        scale, extras = (
            _padded(each, hidden, more).reshape(directions, -1) for each in given.scales
        )
        product = _quantized_product(bb, rows, columns, scale)
    else:
        product = bb.normalize(relax.op.matmul(rows, _constant(columns)))
    return bb.normalize(relax.op.add(product, _constant(added.reshape(1, -1)))), extras


def _padded(array: np.ndarray, hidden: int, more: int) -> np.ndarray:
    """An array with an axis of gates, each padded with zeros to whole vectors.

    No other value depends on those of the padding.
    """
    gated = array.reshape(len(array), -1, hidden, *array.shape[2:])
    return np.pad(gated, [(0, 0), (0, 0), (0, more)] + [(0, 0)] * (gated.ndim - 3))


def _constant(array: np.ndarray, dtype: str = FLOAT) -> relax.Expr:
    return relax.const(np.ascontiguousarray(array, dtype))


def _initial(bb: Any, value: relax.Expr | None, layer: Recurrence, more: int) -> relax.Expr:
    """A first state or cell; zeros unless given."""
    if value is None:
        return _constant(np.zeros((layer.directions, layer.batch, layer.hidden), np.float32))
    return bb.normalize(relax.op.nn.pad(value, [0, 0, 0, 0, 0, more])) if more else value


def _panels(recurrent: np.ndarray, lanes: int) -> np.ndarray:
    """Arrange recurrent weights in panels, one for each vector of a state's values.

    From shape (directions, gates, padded hidden, hidden) to (directions, panels, padded hidden x
    gates, lanes).
    """
    directions, gates, hidden, values = recurrent.shape
    recurrent = np.pad(recurrent, [(0, 0), (0, 0), (0, 0), (0, hidden - values)])
    panels = recurrent.reshape(directions, gates, hidden // lanes, lanes, hidden)
    return panels.transpose(0, 2, 4, 1, 3).reshape(directions, -1, hidden * gates, lanes)


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
    if columns.dtype != np.int8:
        centered = emit(op.subtract, whole, place)
        return emit(op.multiply, emit(op.matmul, centered, _constant(columns)), factor)
    # The product of the zero point is subtracted afterwards.
    integers = relax.const(np.ascontiguousarray(columns))
    sums = emit(op.matmul, emit(op.astype, whole, "uint8"), integers, out_dtype="int32")
    totals = relax.const(columns.sum(0, keepdims=True, dtype=np.int32))
    moved = emit(op.multiply, emit(op.astype, place, "int32"), totals)
    sums = emit(op.astype, emit(op.subtract, sums, moved), FLOAT)
    return emit(op.multiply, sums, factor)
