"""3x3 convolutions as products of transformed tiles: fewer multiplications, the same result.

Winograd's minimal filtering (Lavin & Gray 2016, arXiv:1509.09308) computes a tile of ``m x m``
outputs from ``(m + 2) x (m + 2)`` transformed inputs. It needs 2.25 (m = 2) or 4 (m = 4) times
fewer multiplications than direct convolution. In NHWC it is three kernels: the input's transform; a
batch of matrix products, one for each place of the tile, which is a task like any other; the
output's transform, into which bias, activation and residual are fused. The weights are transformed
at compile time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fewtune.model.passes.padding import known_weights
from fewtune.model.passes.relax_calls import (
    FLOAT,
    OPAQUE,
    OUT_ELEMENTWISE_FUSABLE,
    Legalizer,
    extents_of,
)
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import relax, te, tvm
from fewtune.schedule.tiling import padded_rows, round_up
from fewtune.task.analysis import (
    FLOAT32_BYTES,
    INPUT,
    INPUT_ROWS,
    OUTPUT,
    OUTPUT_COLUMNS,
    PRODUCTS,
)

KERNEL = 3
# Elements of the widest vectors.
LANES = 16
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

# Lavin & Gray, section 4.1 and 4.3: the transforms of input (B), weights (G) and output (A).
TRANSFORMS: dict[int, tuple[Any, Any, Any]] = {
    2: (
        [[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]],
        [[1, 0, 0], [1 / 2, 1 / 2, 1 / 2], [1 / 2, -1 / 2, 1 / 2], [0, 0, 1]],
        [[1, 1, 1, 0], [0, 1, -1, -1]],
    ),
    4: (
        [
            [4, 0, -5, 0, 1, 0],
            [0, -4, -4, 1, 1, 0],
            [0, 4, -4, -1, 1, 0],
            [0, -2, -1, 2, 1, 0],
            [0, 2, -1, -2, 1, 0],
            [0, 4, 0, -5, 0, 1],
        ],
        [
            [1 / 4, 0, 0],
            [-1 / 6, -1 / 6, -1 / 6],
            [-1 / 6, 1 / 6, -1 / 6],
            [1 / 24, 1 / 12, 1 / 6],
            [1 / 24, -1 / 12, 1 / 6],
            [0, 0, 1],
        ],
        [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]],
    ),
}


@dataclass(frozen=True)
class Convolution:
    """A 3x3 convolution of stride 1, in NHWC.

    Attributes
    ----------
    shape : tuple of int
        Of the input: batch, height, width, channels.
    filters : int
    padding : tuple of int
        Top, left, bottom, right.
    traits : CpuTraits, optional
        Of the CPU whose registers the rows of the products fill. Without it, rows are not padded.
    """

    shape: tuple[int, int, int, int]
    filters: int
    padding: tuple[int, int, int, int]
    traits: CpuTraits | None = None

    @property
    def height(self) -> int:
        """Rows of the output."""
        return self.shape[1] + self.padding[0] + self.padding[2] - KERNEL + 1

    @property
    def width(self) -> int:
        """Columns of the output."""
        return self.shape[2] + self.padding[1] + self.padding[3] - KERNEL + 1

    @property
    def padded_filters(self) -> int:
        """Filters of the products, padded with zeros to whole vectors."""
        return round_up(self.filters, LANES)

    def tiles(self, m: int) -> tuple[int, int]:
        """Rows and columns of tiles of ``m x m`` outputs; the last may be partial."""
        return math.ceil(self.height / m), math.ceil(self.width / m)

    def tile_points(self, m: int) -> int:
        """Rows of all products."""
        return (m + KERNEL - 1) ** 2 * self.product_rows(m)

    def product_rows(self, m: int) -> int:
        """Rows of one product: the tiles of all images, padded to whole register tiles."""
        rows, columns = self.tiles(m)
        count = self.shape[0] * rows * columns
        if self.traits is None:
            return count
        return padded_rows(count, self.padded_filters, self.traits, FLOAT)


def transformed_weights(weights: np.ndarray, m: int) -> np.ndarray:
    """Transform weights, for every place of the tile.

    Parameters
    ----------
    weights : numpy.ndarray
        Shape (3, 3, channels, filters).
    m : int

    Returns
    -------
    transformed : numpy.ndarray
        Shape ((m + 2) ** 2, channels, padded filters), of the given type, summed in float64. Added
        filters are zero.
    """
    g = np.array(TRANSFORMS[m][1])
    *_, channels, filters = weights.shape
    places = np.einsum("ai,bj,ijcn->abcn", g, g, weights.astype(np.float64))
    transformed = places.reshape(-1, channels, filters).astype(weights.dtype)
    return np.pad(transformed, ((0, 0), (0, 0), (0, -filters % LANES)))


def transformed_input(data: te.Tensor, convolution: Convolution, m: int) -> te.Tensor:
    """Transform the tiles of the input.

    There are two blocks: one transforms the columns of every row of tiles, the other the rows. Rows
    beyond the tiles repeat the last tile; nothing reads them.

    Parameters
    ----------
    data : te.Tensor
        In NHWC.
    convolution : Convolution
    m : int

    Returns
    -------
    tiles : te.Tensor
        Shape ((m + 2) ** 2, rows of a product, channels).
    """
    batch, height, width, channels = convolution.shape
    top, left = convolution.padding[:2]
    rows, columns = convolution.tiles(m)
    places = m + KERNEL - 1
    matrix = TRANSFORMS[m][0]

    zero = tvm.tirx.const(0, FLOAT)

    def at(b: Any, y: Any, x: Any, c: Any) -> Any:
        inside = tvm.tirx.all(y >= top, y < height + top)
        return tvm.tirx.if_then_else(inside, data[b, y - top, x - left, c], zero)

    def column(b: Any, t: Any, e: Any, x: Any, c: Any) -> Any:
        # One condition a column, not one an element: TVM compiles it in half the time.
        inside = tvm.tirx.all(x >= left, x < width + left)
        found = _chosen(e, matrix, lambda i: at(b, t * m + i, x, c))
        return tvm.tirx.if_then_else(inside, found, zero)

    along = te.compute(
        (batch, rows, places, columns * m + KERNEL - 1, channels), column, name=INPUT_ROWS
    )

    count, product_rows = batch * rows * columns, convolution.product_rows(m)

    def tile(place: Any, row: Any, c: Any) -> Any:
        p = row if product_rows == count else tvm.tirx.min(row, count - 1)
        b, t, s = p // (rows * columns), p // columns % rows, p % columns
        return _chosen(place % places, matrix, lambda j: along[b, t, place // places, s * m + j, c])

    return te.compute((places**2, product_rows, channels), tile, name=INPUT)


def multiplied(tiles: te.Tensor, weights: te.Tensor) -> te.Tensor:
    """One matrix product for each place of the tile.

    Parameters
    ----------
    tiles : te.Tensor
        Shape (places, rows, channels).
    weights : te.Tensor
        Shape (places, channels, padded filters).

    Returns
    -------
    products : te.Tensor
        Shape (places, rows, padded filters).
    """
    places, count, channels = tiles.shape
    k = te.reduce_axis((0, channels), name="k")
    return te.compute(
        (places, count, weights.shape[2]),
        lambda f, p, n: te.sum(tiles[f, p, k] * weights[f, k, n], axis=k),
        name=PRODUCTS,
    )


def transformed_output(products: te.Tensor, convolution: Convolution, m: int) -> te.Tensor:
    """Transform the products of `multiplied` into the convolution's output, in two blocks.

    Returns
    -------
    output : te.Tensor
        In NHWC.
    """
    rows, columns = convolution.tiles(m)
    places = m + KERNEL - 1
    matrix = TRANSFORMS[m][2]
    batch, filters = convolution.shape[0], convolution.filters
    along = te.compute(
        (batch, rows, columns, places, m, filters),
        lambda b, t, s, e, j, n: _chosen(
            j, matrix, lambda i: products[e * places + i, (b * rows + t) * columns + s, n]
        ),
        name=OUTPUT_COLUMNS,
    )
    return te.compute(
        (batch, convolution.height, convolution.width, filters),
        lambda b, y, x, n: _chosen(y % m, matrix, lambda i: along[b, y // m, x // m, i, x % m, n]),
        name=OUTPUT,
    )


def _chosen(index: Any, matrix: Sequence[Sequence[float]], term: Callable[[int], Any]) -> Any:
    """The product of row ``index`` of a matrix with a vector.

    It is a chain of selections. If the loop over the rows is unrolled, each step keeps one of them.
    """
    result = _combination(matrix[-1], term)
    for place in reversed(range(len(matrix) - 1)):
        result = tvm.tirx.Select(index == place, _combination(matrix[place], term), result)
    return result


def _combination(row: Sequence[float], term: Callable[[int], Any]) -> Any:
    """A weighted sum, without terms of weight zero and multiplications by one."""
    total = None
    for place, factor in enumerate(row):
        if factor == 0:
            continue
        size = factor if total is None else abs(factor)
        value = term(place)
        scaled = value if size == 1 else value * tvm.tirx.const(size, FLOAT)
        if total is None:
            total = scaled
            continue
        total = total + scaled if factor > 0 else total - scaled
    return total


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
        depth = KERNEL**2 * channels
        # A multiplication and an addition are two operations.
        flops, calls = 2 * depth * result, 1
        elements = depth * convolution.filters + _REUSED * (given + result)
    else:
        flops = 2 * convolution.tile_points(m) * channels * convolution.padded_filters
        calls = 3
        between = convolution.tile_points(m) * (channels + convolution.padded_filters)
        weights = (m + KERNEL - 1) ** 2 * channels * convolution.padded_filters
        elements = weights + _REUSED * between + _MOVED * (given + between + result)
    return flops / _FLOPS_PER_BYTE + FLOAT32_BYTES * elements + calls * _CALL_BYTES


def best_tile(convolution: Convolution) -> int:
    """The tile with the lowest cost; 0 if direct convolution is about as fast."""
    if convolution.shape[3] % LANES:
        return 0
    channels = convolution.shape[3] + convolution.padded_filters
    most = _MOST_BYTES // (FLOAT32_BYTES * channels)
    fitting = [m for m in TRANSFORMS if convolution.tile_points(m) <= most]
    best = min(fitting, key=lambda m: cost(convolution, m), default=0)
    return best if cost(convolution, best) < _LEAST_GAIN * cost(convolution, 0) else 0


def added_bytes(convolution: Convolution, m: int) -> int:
    """Bytes of a convolution's transformed weights beyond those of its plain weights."""
    if not m:
        return 0
    transformed = (m + KERNEL - 1) ** 2 * convolution.padded_filters
    added = transformed - KERNEL**2 * convolution.filters
    return FLOAT32_BYTES * convolution.shape[3] * added


def tiles_within(counts: Mapping[Convolution, int], most_bytes: float) -> dict[Convolution, int]:
    """The best tile of every convolution, made smaller where weights would grow by too much.

    Parameters
    ----------
    counts : mapping of int
        How often each convolution occurs, with weights of its own.
    most_bytes : float
        That the weights may grow by. The tile that costs the least time for the bytes that it
        saves goes first.
    """
    tiles = {convolution: best_tile(convolution) for convolution in counts}

    def lost(step: tuple[Convolution, int]) -> float:
        convolution, m = step
        saved = added_bytes(convolution, tiles[convolution]) - added_bytes(convolution, m)
        return (cost(convolution, m) - cost(convolution, tiles[convolution])) / saved

    while sum(added_bytes(each, tiles[each]) * counts[each] for each in counts) > most_bytes:
        steps = [
            (each, m)
            for each, chosen in tiles.items()
            for m in (0, *TRANSFORMS)
            if added_bytes(each, m) < added_bytes(each, chosen)
        ]
        convolution, m = min(steps, key=lost)
        tiles[convolution] = m
    return tiles


class Winograd:
    """Legalizes convolutions by transforms where that pays, and counts them.

    Parameters
    ----------
    most_bytes : float
        That transformed weights may add to the library.
    """

    def __init__(self, most_bytes: float = math.inf) -> None:
        self._room = most_bytes
        self._planned: dict[Convolution, int] = {}
        self.count = 0
        # Convolutions with a smaller tile than the best, or none.
        self.reduced = 0

    def plan(self, module: tvm.IRModule, traits: CpuTraits | None) -> None:
        """Choose the tiles of all convolutions of a module within the bytes that they may add."""
        counts: Counter[Convolution] = Counter()

        def count(value: relax.Expr) -> None:
            if isinstance(value, relax.Call) and value.op == tvm.ir.Op.get("relax.nn.conv2d"):
                found = _transformable(value, traits)
                counts.update([] if found is None else [found])

        relax.analysis.post_order_visit(module["main"], count)
        self._planned = self._tiles(counts)
        self.reduced = sum(counts[c] for c, m in self._planned.items() if m != best_tile(c))

    def _tiles(self, counts: Mapping[Convolution, int]) -> dict[Convolution, int]:
        tiles = tiles_within(counts, self._room)
        self._room -= sum(added_bytes(each, tiles[each]) * counts[each] for each in counts)
        return tiles

    def convolutions(self, traits: CpuTraits | None, fallback: Legalizer) -> Legalizer:
        """A legalizer of ``relax.nn.conv2d``; ``fallback`` legalizes direct convolutions."""

        def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
            convolution = _transformable(call, traits)
            if convolution is None:
                return fallback(builder, call)
            m = self._planned.get(convolution)
            if m is None:
                # Another legalizer made it.
                m = self._tiles({convolution: 1})[convolution]
            if not m:
                return fallback(builder, call)
            self.count += 1
            return _by_transforms(builder, call, convolution, m)

        return legalized


def _by_transforms(
    builder: relax.BlockBuilder, call: relax.Call, convolution: Convolution, m: int
) -> relax.Expr:
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


def _transformable(call: relax.Call, traits: CpuTraits | None) -> Convolution | None:
    """The convolution of a call; None unless it is 3x3, of stride 1, in NHWC and ungrouped."""
    shape = known_weights(call)
    steps = (*call.attrs.strides, *call.attrs.dilation)
    if shape is None or shape[:2] != [KERNEL, KERNEL] or any(int(step) != 1 for step in steps):
        return None
    count, height, width, channels = extents_of(call.args[0])
    top, left, bottom, right = (int(size) for size in call.attrs.padding)
    given, padding = (count, height, width, channels), (top, left, bottom, right)
    return Convolution(given, shape[3], padding, traits)
