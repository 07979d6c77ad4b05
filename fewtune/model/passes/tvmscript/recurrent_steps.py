"""Parts of one step of a recurrent layer: its products, and its next cell and state."""

# ruff: noqa: ANN001, ANN202 (of the macros, which are TVMScript: they are parsed, not run)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.script import tirx as T  # noqa: N812 (TVMScript's own name, which its parser expects)

from fewtune.onnx_graph.quantized.affine import MOST_OF_BYTE

RESETS_FIRST = "GRU that resets first"

# From the number of a gate to its value.
Gates = Callable[[Any], Any]


def multiplication(rows: int, unrolled: int, lanes: int, hidden: int) -> Any:
    """A macro that multiplies states by a panel of the recurrent weights.

    Parameters
    ----------
    rows, unrolled : int
        The register tile: sequences, and values of their states.
    lanes, hidden : int

    Returns
    -------
    macro
        Of ``count`` gates from gate ``begin``, the sums are in ``sums[:, 0]``.
    """

    def weight(stored: Any) -> Any:
        return T.Cast("float32", stored)

    @T.macro
    def multiply(sums, weights, known, d, p, tile, begin, count):  # type: ignore[no-untyped-def]
        for b in T.unroll(rows):
            for u in T.unroll(unrolled):
                for g in T.unroll(count):
                    for lane in T.vectorized(lanes):
                        sums[b, u, begin + g, lane] = T.float32(0)
        for k in T.serial(hidden // unrolled):
            for u in T.unroll(unrolled):
                for b in T.unroll(rows):
                    for g in T.unroll(count):
                        for lane in T.vectorized(lanes):
                            sums[b, u, begin + g, lane] = sums[b, u, begin + g, lane] + known[
                                tile * rows + b, k * unrolled + u
                            ] * weight(
                                weights[d, p, begin * hidden + (k * unrolled + u) * count + g, lane]
                            )
        for b in T.unroll(rows):
            for g in T.unroll(count):
                for u in T.unroll(unrolled - 1):
                    for lane in T.vectorized(lanes):
                        sums[b, 0, begin + g, lane] = (
                            sums[b, 0, begin + g, lane] + sums[b, u + 1, begin + g, lane]
                        )

    return multiply


def quantisation(batch: int, panels: int, lanes: int) -> Any:
    """A macro that quantises states by their range, as ONNX's DynamicQuantizeLinear does.

    Parameters
    ----------
    batch, panels, lanes : int
        Sequences, whose states have one range, and vectors of a state.

    Returns
    -------
    macro
        Writes the integers, less their zero point, in the states' place, their scale and the zero
        point.
    """

    @T.macro
    def quantise(known, ends, scale):  # type: ignore[no-untyped-def]
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
        scale[1] = T.min(
            T.nearbyint((T.float32(0) - ends[0, 0]) / scale[0]), T.float32(MOST_OF_BYTE)
        )
        for row in T.serial(batch):
            for q in T.serial(panels):
                for lane in T.vectorized(lanes):
                    known[row, q * lanes + lane] = (
                        T.min(
                            T.max(
                                T.nearbyint(known[row, q * lanes + lane] / scale[0]) + scale[1],
                                T.float32(0),
                            ),
                            T.float32(MOST_OF_BYTE),
                        )
                        - scale[1]
                    )

    return quantise


# The next cell and the next state. `product` gives a gate's product with the state, `given` its
# product with the input, plus the biases. `extra` is a GRU's: the bias of its third gate's product,
# or the update, if it resets first.


def _lstm_cell(product: Gates, given: Gates, cell: Any) -> Any:
    entry, forget = (T.sigmoid(product(g) + given(g)) for g in (0, 2))
    return forget * cell + entry * T.tanh(product(3) + given(3))


def _lstm_state(product: Gates, given: Gates, _extra: Any, _state: Any, cell: Any) -> Any:
    return T.sigmoid(product(1) + given(1)) * T.tanh(cell)


def _no_cell(_product: Gates, _given: Gates, cell: Any) -> Any:
    return cell


def _gru_state(product: Gates, given: Gates, bias: Any, state: Any, _cell: Any) -> Any:
    update, reset = (T.sigmoid(product(g) + given(g)) for g in (0, 1))
    new = T.tanh(given(2) + reset * (product(2) + bias))
    return (T.float32(1) - update) * new + update * state


def _gru_state_after_reset(
    product: Gates, given: Gates, update: Any, state: Any, _cell: Any
) -> Any:
    return (T.float32(1) - update) * T.tanh(given(2) + product(2)) + update * state


def _rnn_state(product: Gates, given: Gates, _extra: Any, _state: Any, _cell: Any) -> Any:
    return T.tanh(product(0) + given(0))


CELLS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "LSTM": (_lstm_cell, _lstm_state),
    "GRU": (_no_cell, _gru_state),
    RESETS_FIRST: (_no_cell, _gru_state_after_reset),
    "RNN": (_no_cell, _rnn_state),
}
