"""Which convolutions go through Winograd's transforms, and how a graph gets them."""

from __future__ import annotations

from collections.abc import Callable

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
from fewtune.task.analysis import FLOAT32_BYTES
from fewtune.task.winograd_names import INPUT, OUTPUT

# Of what lies between the transforms: a large image's tiles are not to fill the memory.
_MOST_BYTES = 2**28
# What transforming has to bring the estimate down to: the estimate is rough.
_LEAST_GAIN = 0.9
# How much less than weights from memory activations cost, which lie in a core's own cache: kernels
# that sum up reuse them, transforms only move them. Fitted to fifteen tuned kernels of five shapes
# on an Emerald Rapids, with weights in memory (results/what-parts-are-worth.md).
_SUMMED, _MOVED = 0.1, 0.35
_CALL_BYTES = 85_000
# Operations that take as long as a byte of weights. With 8 the estimate chooses the tile that was
# measured to be the fastest, or one within some per cent of it. That holds on an EPYC, whose peak
# is 8 operations a byte of its bandwidth, and on the Emerald Rapids, whose is 18: memory works
# beside the arithmetic for a part of the time.
_FLOPS_PER_BYTE = 8.0
# TVM's kinds of operators (OpPatternKind): what may be fused behind, and nothing at all.
_OUT_ELEMENTWISE_FUSABLE, _OPAQUE = 4, 8


def cost(convolution: Convolution, m: int) -> float:
    """Roughly the time it takes, in the bytes that memory moves in it; m = 0: the plain sum.

    Every kernel is charged for what it computes and for what it reads, as if the two never
    overlapped. Weights come from memory: the transforms have to save enough arithmetic to pay for
    their own traffic, and for weights of 1.8 (m = 2) or 4 (m = 4) times the size. So a small
    plane, whose few tiles seldom use each weight, gains by small tiles or none.
    """
    batch, height, width, channels = convolution.shape
    given = batch * height * width * channels
    result = batch * convolution.height * convolution.width * convolution.filters
    if m == 0:
        flops, calls = convolution.flops, 1
        elements = convolution.depth * convolution.filters + _SUMMED * (given + result)
    else:
        flops, calls = convolution.product_flops(m), 3
        between = convolution.tile_points(m) * (channels + convolution.padded_filters)
        weights = (m + KERNEL - 1) ** 2 * channels * convolution.padded_filters
        elements = weights + _SUMMED * between + _MOVED * (given + between + result)
    return flops / _FLOPS_PER_BYTE + FLOAT32_BYTES * elements + calls * _CALL_BYTES


def best_tile(convolution: Convolution) -> int:
    """The tile that a convolution gains most by; 0 where it would gain little or nothing."""
    if convolution.shape[3] % LANES:
        return 0
    fitting = [m for m in TRANSFORMS if between_bytes(convolution, m) <= _MOST_BYTES]
    best = min(fitting, key=lambda m: cost(convolution, m), default=0)
    return best if cost(convolution, best) < _LEAST_GAIN * cost(convolution, 0) else 0


def between_bytes(convolution: Convolution, m: int) -> int:
    """Bytes of the transformed tiles and of their products, which the plain sum does not need."""
    channels = convolution.shape[3] + convolution.padded_filters
    return FLOAT32_BYTES * convolution.tile_points(m) * channels


class Chooser:
    """`best_tile`, which remembers the convolutions that it chose a tile for.

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
        """Operations that the chosen convolutions' products need less than their plain sums."""
        return sum(c.flops - c.product_flops(m) for c, m in self.chosen)


def legalize(
    choose: Callable[[Convolution], int], otherwise: Legalizer, traits: CpuTraits | None = None
) -> Legalizer:
    """A legaliser for ``relax.nn.conv2d`` that turns some convolutions into transformed ones.

    Parameters
    ----------
    choose : callable
        The tile ``m`` for a convolution that could be transformed, 0 to leave it as it is.
    otherwise : callable
        Legalises what is left as it is.
    traits : CpuTraits, optional
        Of the CPU whose registers the products are to fill.
    """

    def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        convolution = eligible(call, traits)
        if convolution is None:
            return otherwise(builder, call)
        m = choose(convolution)
        if not m:
            return otherwise(builder, call)
        weights = transformed_weights(call.args[1].value.numpy(), m)
        tiles = builder.emit(
            builder.call_te(
                lambda data: transformed_input(data, convolution, m),
                call.args[0],
                primfunc_name_hint=INPUT,
                primfunc_attrs={"op_pattern": _OPAQUE},
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
            primfunc_attrs={"op_pattern": _OUT_ELEMENTWISE_FUSABLE},
        )

    return legalized


def eligible(call: relax.Call, traits: CpuTraits | None = None) -> Convolution | None:
    """The convolution of a call, where it is one that could be transformed."""
    shape = known_weights(call)
    steps = (*call.attrs.strides, *call.attrs.dilation)
    if shape is None or shape[:2] != [KERNEL, KERNEL] or any(int(step) != 1 for step in steps):
        return None
    count, height, width, channels = (int(extent) for extent in call.args[0].ty.shape)
    top, left, bottom, right = (int(size) for size in call.attrs.padding)
    given, padding = (count, height, width, channels), (top, left, bottom, right)
    return Convolution(given, shape[3], padding, traits)
