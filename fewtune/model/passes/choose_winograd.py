"""Chooses the convolutions that Winograd's transforms make faster, and legalises them."""

from __future__ import annotations

from collections.abc import Callable

from fewtune.model.passes.op_patterns import OPAQUE, OUT_ELEMENTWISE_FUSABLE
from fewtune.model.passes.pad_filters import Legalizer, known_weights
from fewtune.model.passes.winograd import (
    KERNEL,
    LANES,
    TRANSFORMS,
    Convolution,
    multiplied,
    transformed_input,
    transformed_output,
    transformed_weights,
)
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import relax
from fewtune.task.analysis import FLOAT32_BYTES, INPUT, OUTPUT

# Most bytes between the transforms, so that the tiles of a large image do not fill the memory.
_MOST_BYTES = 2**28
# The estimate is rough: the transformed convolution must cost at most this part of the direct one.
_LEAST_GAIN = 0.9
# Cost of a byte of activations relative to a byte of weights. Activations are in a core's cache:
# products reuse them, transforms only move them. Fitted to fifteen tuned kernels of five shapes on
# an Emerald Rapids, with weights in memory.
_REUSED, _MOVED = 0.1, 0.35
# Cost of one kernel call, in bytes of weights.
_CALL_BYTES = 85_000
# Operations that take as long as reading a byte of weights. With 8, the estimate chooses the tile
# that was measured to be the fastest, or one within some per cent of it: on an EPYC, whose peak is
# 8 operations a byte of its bandwidth, and on the Emerald Rapids, whose peak is 18 (memory is read
# during a part of the arithmetic).
_FLOPS_PER_BYTE = 8.0


def cost(convolution: Convolution, m: int) -> float:
    """Estimate the time of a convolution.

    The cost of a kernel is that of its arithmetic plus that of its memory traffic, as if the two
    never overlapped. Weights are read from memory. Transformed weights are 1.8 (m = 2) or 4 (m = 4)
    times as large. A small plane has few tiles, each weight is used few times, and so small tiles
    or none are best.

    Parameters
    ----------
    convolution : Convolution
    m : int
        Outputs along a tile; 0 for direct convolution.

    Returns
    -------
    cost : float
        In bytes that memory could move in that time.
    """
    batch, height, width, channels = convolution.shape
    given = batch * height * width * channels
    result = batch * convolution.height * convolution.width * convolution.filters
    if m == 0:
        flops, calls = convolution.flops, 1
        elements = convolution.depth * convolution.filters + _REUSED * (given + result)
    else:
        flops, calls = convolution.product_flops(m), 3
        between = convolution.tile_points(m) * (channels + convolution.padded_filters)
        weights = (m + KERNEL - 1) ** 2 * channels * convolution.padded_filters
        elements = weights + _REUSED * between + _MOVED * (given + between + result)
    return flops / _FLOPS_PER_BYTE + FLOAT32_BYTES * elements + calls * _CALL_BYTES


def best_tile(convolution: Convolution) -> int:
    """The tile with the lowest cost; 0 if direct convolution is about as fast."""
    if convolution.shape[3] % LANES:
        return 0
    fitting = [m for m in TRANSFORMS if intermediate_bytes(convolution, m) <= _MOST_BYTES]
    best = min(fitting, key=lambda m: cost(convolution, m), default=0)
    return best if cost(convolution, best) < _LEAST_GAIN * cost(convolution, 0) else 0


def intermediate_bytes(convolution: Convolution, m: int) -> int:
    """Bytes of the transformed tiles and of their products."""
    channels = convolution.shape[3] + convolution.padded_filters
    return FLOAT32_BYTES * convolution.tile_points(m) * channels


class Chooser:
    """`best_tile`; records the convolutions for which it chose a tile.

    Attributes
    ----------
    chosen : list of (Convolution, int)
        With their tiles.
    """

    def __init__(self) -> None:
        self.chosen: list[tuple[Convolution, int]] = []

    def __call__(self, convolution: Convolution) -> int:
        m = best_tile(convolution)
        if m:
            self.chosen.append((convolution, m))
        return m

    @property
    def saved_flops(self) -> int:
        """Operations that direct convolution would need in addition, over all chosen ones."""
        return sum(c.flops - c.product_flops(m) for c, m in self.chosen)


def winograd_legalizer(
    choose: Callable[[Convolution], int], fallback: Legalizer, traits: CpuTraits | None
) -> Legalizer:
    """A legaliser for ``relax.nn.conv2d`` that computes some convolutions by transforms.

    Parameters
    ----------
    choose : callable
        Gives the tile ``m`` for a convolution; 0 for direct convolution.
    fallback : callable
        Legalises direct convolutions.
    traits : CpuTraits or None
        Of the CPU whose registers the products fill.
    """

    def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        convolution = transformable(call, traits)
        if convolution is None:
            return fallback(builder, call)
        m = choose(convolution)
        if not m:
            return fallback(builder, call)
        weights = transformed_weights(call.args[1].value.numpy(), m)
        tiles = builder.emit(
            builder.call_te(
                lambda data: transformed_input(data, convolution, m),
                call.args[0],
                primfunc_name_hint=INPUT,
                primfunc_attrs={"op_pattern": OPAQUE},
            )
        )
        products = builder.emit(
            builder.call_te(
                multiplied, tiles, relax.const(weights), primfunc_name_hint="winograd_matmul"
            )
        )
        return builder.call_te(
            lambda given: transformed_output(given, convolution, m),
            products,
            primfunc_name_hint=OUTPUT,
            primfunc_attrs={"op_pattern": OUT_ELEMENTWISE_FUSABLE},
        )

    return legalized


def transformable(call: relax.Call, traits: CpuTraits | None) -> Convolution | None:
    """The convolution of a call; None unless it is 3x3, of stride 1, in NHWC and ungrouped."""
    shape = known_weights(call)
    steps = (*call.attrs.strides, *call.attrs.dilation)
    if shape is None or shape[:2] != [KERNEL, KERNEL] or any(int(step) != 1 for step in steps):
        return None
    count, height, width, channels = (int(extent) for extent in call.args[0].ty.shape)
    top, left, bottom, right = (int(size) for size in call.attrs.padding)
    given, padding = (count, height, width, channels), (top, left, bottom, right)
    return Convolution(given, shape[3], padding, traits)
