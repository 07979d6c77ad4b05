"""Weights of recurrent layers, and the products of all steps' inputs with them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fewtune.onnx_graph.quantized.affine import MOST_OF_BYTE
from fewtune.runtime.tvm import relax

# Among a quantised layer's inputs: weights, and their scale; the zero point is behind that.
_OWN, _RECURRENT = (1, 8), (2, 10)


class Weights(NamedTuple):
    """A layer's weights, of one gate after the other.

    Attributes
    ----------
    own, recurrent : numpy.ndarray
        Shape (directions, gates x hidden, inputs) and (directions, gates x hidden, hidden), of
        float32, or of int8 or int16 where the layer is quantised.
    bias : numpy.ndarray
        Shape (directions, 2 x gates x hidden).
    scales : list of numpy.ndarray
        Of quantised weights: both scales, shape (directions, gates x hidden).
    """

    own: np.ndarray
    recurrent: np.ndarray
    bias: np.ndarray
    scales: list[np.ndarray]


def plain_weights(inputs: Any, params: Any) -> Weights:
    """The weights of ONNX's LSTM, GRU or RNN, from the inputs of the node."""
    own, recurrent = (_known(inputs[place], params) for place in (1, 2))
    return Weights(own, recurrent, _bias(inputs, params, own), [])


def quantised_weights(inputs: Any, params: Any) -> Weights:
    """The weights of onnxruntime's quantised LSTM, less their zero points."""
    found, scales = [], []
    for place, scale_place in (_OWN, _RECURRENT):
        weights = _known(inputs[place], params).astype(np.int16)
        directions, _, width = weights.shape
        zero = inputs[scale_place + 1]
        if zero is not None:
            zero_point = _known(zero, params).astype(np.int16)
            weights = weights - zero_point.reshape(directions, 1, -1)
        is_narrow = np.array_equal(weights, weights.astype(np.int8))
        weights = weights.astype(np.int8 if is_narrow else np.int16)
        found.append(np.moveaxis(weights, 1, 2))
        scale = _known(inputs[scale_place], params).reshape(directions, -1)
        scales.append(np.broadcast_to(scale, (directions, width)))
    own, recurrent = found
    return Weights(own, recurrent, _bias(inputs, params, own), scales)


def _known(given: Any, params: Any) -> np.ndarray:
    from tvm.relax.frontend.onnx import onnx_frontend

    value: np.ndarray = onnx_frontend.get_constant(given, params).value.numpy()
    return value


def _bias(inputs: Any, params: Any, own: np.ndarray) -> np.ndarray:
    directions, width, _ = own.shape
    if inputs[3] is None:
        return np.zeros((directions, 2 * width), np.float32)
    return _known(inputs[3], params)


def quantised_product(
    bb: Any, rows: relax.Expr, columns: np.ndarray, scales: np.ndarray
) -> relax.Expr:
    """The product of rows, which are quantised by their range, with integers.

    Parameters
    ----------
    bb : BlockBuilder
    rows : Expr
        Of float32. They have one range, as in ONNX's DynamicQuantizeLinear.
    columns : numpy.ndarray
        Of int8 or int16.
    scales : numpy.ndarray
        Of the columns.

    Returns
    -------
    product : Expr
        Of float32.
    """
    op = relax.op

    def emit(operator: Any, *given: Any, **more: Any) -> relax.Expr:
        return bb.emit(operator(*given, **more))

    zero, one, most = (relax.const(each, "float32") for each in (0.0, 1.0, MOST_OF_BYTE))
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
        centred = emit(op.subtract, whole, place)
        floats = relax.const(np.ascontiguousarray(columns, np.float32))
        return emit(op.multiply, emit(op.matmul, centred, floats), factor)
    # The product of the zero point is subtracted afterwards.
    integers = relax.const(np.ascontiguousarray(columns))
    sums = emit(op.matmul, emit(op.astype, whole, "uint8"), integers, out_dtype="int32")
    totals = relax.const(columns.sum(0, keepdims=True, dtype=np.int32))
    moved = emit(op.multiply, emit(op.astype, place, "int32"), totals)
    sums = emit(op.astype, emit(op.subtract, sums, moved), "float32")
    return emit(op.multiply, sums, factor)
