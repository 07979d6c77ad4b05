"""Converters of recurrent layers that one kernel computes, quantised LSTMs among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fewtune.model.passes.attributes import text_attribute
from fewtune.model.passes.tvmscript.recurrence import GATES, Recurrence
from fewtune.model.passes.tvmscript.recurrent_weights import (
    Weights,
    plain_weights,
    quantised_product,
    quantised_weights,
)
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import relax

_KERNEL = "recurrence"


def is_recurrence(kernel: str) -> bool:
    """Whether a kernel computes a recurrent layer."""
    return kernel.rstrip("0123456789") == _KERNEL


def converters(traits: CpuTraits) -> dict[str, Any]:
    """Converters by operator, for TVM's importer.

    Parameters
    ----------
    traits : CpuTraits
        Of the processor that the layers run on.
    """
    plain = {kind: _Layer(kind, traits, plain_weights) for kind in GATES}
    return {**plain, "DynamicQuantizeLSTM": _Layer("LSTM", traits, quantised_weights)}


class _Layer:
    def __init__(
        self, kind: str, traits: CpuTraits, weights_of: Callable[[Any, Any], Weights]
    ) -> None:
        self._kind, self._traits, self._weights_of = kind, traits, weights_of

    def get_converter(self, _opset: int) -> Any:
        return self._convert

    def _convert(
        self, bb: Any, inputs: list[Any], attributes: dict[str, Any], params: Any
    ) -> relax.Expr:
        from tvm.relax.frontend.onnx import onnx_frontend

        kind, traits, gates = self._kind, self._traits, GATES[self._kind]
        data, first, first_cell = (inputs[place] for place in (0, 5, 6))
        own, recurrent, bias, scales = self._weights_of(inputs, params)
        steps, batch, width = (int(each) for each in data.ty.shape)
        directions, _, hidden = recurrent.shape
        more = -hidden % traits.lanes("float32")
        wide = hidden + more
        order = text_attribute(attributes, "direction", "forward")
        resets_first = kind == "GRU" and not attributes.get("linear_before_reset", 0)
        sizes, weight_dtype = (steps, batch, directions, wide), recurrent.dtype.name
        layer = Recurrence(kind, *sizes, order == "reverse", resets_first, weight_dtype)

        def padded(array: np.ndarray) -> np.ndarray:
            """An array with an axis of gates, each padded with zeros to whole vectors.

            No other value depends on those of the padding.
            """
            gated = array.reshape(directions, -1, hidden, *array.shape[2:])
            return np.pad(gated, [(0, 0), (0, 0), (0, more)] + [(0, 0)] * (gated.ndim - 3))

        biases = padded(bias)
        added = biases[:, :gates] + biases[:, gates:]
        extras = np.zeros((directions, wide), np.float32)
        if kind == "GRU" and not resets_first:
            extras, added[:, 2] = biases[:, -1], biases[:, 2]
        columns = np.moveaxis(padded(own), 3, 0).reshape(width, directions * gates * wide)
        rows = bb.normalize(relax.op.reshape(data, (steps * batch, width)))
        if scales:
            own_scales, extras = (padded(each).reshape(directions, -1) for each in scales)
            product = quantised_product(bb, rows, columns, own_scales)
        else:
            product = bb.normalize(relax.op.matmul(rows, _constant(columns)))
        given = bb.normalize(relax.op.add(product, _constant(added.reshape(1, -1))))

        def initial(value: relax.Expr | None) -> relax.Expr:
            """A first state or cell; zeros unless given."""
            if value is None:
                return _constant(np.zeros((directions, batch, wide), np.float32))
            value = onnx_frontend.get_constant(value, params)
            pads = [0, 0, 0, 0, 0, more]
            return bb.normalize(relax.op.nn.pad(value, pads)) if more else value

        arguments = [
            given,
            _constant(
                _panels(padded(recurrent), traits.lanes("float32"), layer.early), weight_dtype
            ),
            _constant(extras),
            initial(first),
            initial(first_cell),
        ]
        shapes = [(directions, batch, wide), (steps, directions, batch, wide)]
        kernel = bb.add_func(layer.kernel(traits), _KERNEL)
        outputs = bb.emit(
            relax.call_tir(
                kernel,
                relax.Tuple(arguments),
                [relax.TensorType(shape, "float32") for shape in shapes],
            )
        )
        cell, states = (
            _unpadded(bb, bb.emit(relax.TupleGetItem(outputs, place)), hidden, more)
            for place in range(2)
        )
        ends = [
            _step(bb, states, index, 0 if order == "reverse" or index else steps - 1)
            for index in range(directions)
        ]
        last = ends[0] if len(ends) == 1 else bb.normalize(relax.op.concat(ends, axis=0))
        return relax.Tuple([states, last, cell])


def _constant(array: np.ndarray, dtype: str = "float32") -> relax.Expr:
    return relax.const(np.ascontiguousarray(array, dtype))


def _panels(recurrent: np.ndarray, lanes: int, early: int) -> np.ndarray:
    """Arrange recurrent weights in panels, one for each vector of a state's values.

    Parameters
    ----------
    recurrent : numpy.ndarray
        Shape (directions, gates, padded hidden, hidden).
    lanes : int
    early : int
        The first gates, which are multiplied before the others: they come first in a panel, so that
        memory is read in order.

    Returns
    -------
    panels : numpy.ndarray
        Shape (directions, panels, padded hidden x gates, lanes).
    """
    directions, gates, hidden, values = recurrent.shape
    recurrent = np.pad(recurrent, [(0, 0), (0, 0), (0, 0), (0, hidden - values)])
    panels = recurrent.reshape(directions, gates, hidden // lanes, lanes, hidden)
    panels = panels.transpose(0, 2, 4, 1, 3)
    parts = (panels[..., :early, :], panels[..., early:, :])
    return np.concatenate([_merged(part) for part in parts], axis=2)


def _merged(panels: np.ndarray) -> np.ndarray:
    """Panels whose values and gates are one axis."""
    directions, count, hidden, gates, lanes = panels.shape
    return panels.reshape(directions, count, hidden * gates, lanes)


def _unpadded(bb: Any, value: relax.Expr, hidden: int, more: int) -> relax.Expr:
    """A state without the padding of its last axis."""
    if not more:
        return value
    return bb.normalize(relax.op.strided_slice(value, [-1], [0], [hidden]))


def _step(bb: Any, states: relax.Expr, direction: int, step: int) -> relax.Expr:
    """The state of a direction after a step, shape (1, batch, hidden)."""
    _, _, batch, hidden = (int(each) for each in states.ty.shape)
    part = relax.op.strided_slice(states, [0, 1], [step, direction], [step + 1, direction + 1])
    return bb.normalize(relax.op.reshape(bb.normalize(part), (1, batch, hidden)))
