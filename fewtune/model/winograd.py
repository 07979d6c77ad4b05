"""3x3 convolutions as products of transformed tiles: fewer multiplications, the same result.

Winograd's minimal filtering (Lavin & Gray 2016, arXiv:1509.09308) computes a tile of ``m x m``
outputs from ``m + 2`` squared transformed inputs: 2.25 (m = 2) or 4 (m = 4) times fewer
multiplications than the sum itself. In NHWC it is three kernels: the input's transform, one matrix
product for each place of the tile, which is a task like any other, and the output's transform,
into which bias, activation and residual are fused. The weights are transformed here, once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fewtune.task.analysis import cost_bytes
from fewtune.tvm_runtime import relax, te, tvm

INPUT_ROWS, INPUT = "winograd_input_rows", "winograd_input"
OUTPUT_COLUMNS, OUTPUT = "winograd_output_columns", "winograd_output"
_KERNEL = 3
_TYPE, _BYTES = "float32", 4
# Channels that fill the widest vectors; the transforms' schedules ask for them.
_LANES = 16
# What transforming has to bring the estimate down to: the estimate is rough.
_LEAST_GAIN = 0.85
# TVM's kinds of operators (OpPatternKind): what may be fused behind, and nothing at all.
_OUT_ELEMENTWISE_FUSABLE, _OPAQUE = 4, 8

# Lavin & Gray, section 4.1 and 4.3: the transforms of input (B), weights (G) and output (A).
_TRANSFORMS: dict[int, tuple[Any, Any, Any]] = {
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
    """

    shape: tuple[int, int, int, int]
    filters: int
    padding: tuple[int, int, int, int]

    @property
    def height(self) -> int:
        """Rows of the output."""
        return self.shape[1] + self.padding[0] + self.padding[2] - _KERNEL + 1

    @property
    def width(self) -> int:
        """Columns of the output."""
        return self.shape[2] + self.padding[1] + self.padding[3] - _KERNEL + 1

    @property
    def flops(self) -> int:
        """Of the plain sum; a multiplication and an addition are two."""
        return self.shape[0] * self.height * self.width * self.filters * self._depth * 2

    @property
    def _depth(self) -> int:
        return _KERNEL**2 * self.shape[3]

    def tiles(self, m: int) -> tuple[int, int]:
        """Rows and columns of tiles of ``m x m`` outputs, the last ones perhaps in part."""
        return math.ceil(self.height / m), math.ceil(self.width / m)

    def product_flops(self, m: int) -> int:
        """Of the products that take the place of the sum."""
        return 2 * self._tile_points(m) * self.shape[3] * self.filters

    def cost(self, m: int) -> float:
        """Roughly the time it takes, in the bytes that memory moves in it; m = 0: the plain sum.

        Every kernel is charged for what it computes and for what it moves, as if the two never
        overlapped; what one kernel leaves for the next is charged once. So the transforms have to
        save enough arithmetic to pay for their traffic, and for weights of 1.8 or 4 times the size.
        """
        batch, height, width, channels = self.shape
        given = batch * height * width * channels
        result = batch * self.height * self.width * self.filters
        if m == 0:
            elements = given + self._depth * self.filters + result
            return cost_bytes(self.flops, _BYTES * elements, calls=1)
        tiles = self._tile_points(m) * channels
        products = self._tile_points(m) * self.filters
        weights = (m + _KERNEL - 1) ** 2 * channels * self.filters
        elements = given + tiles + weights + products + result
        return cost_bytes(self.product_flops(m), _BYTES * elements, calls=3)

    def _tile_points(self, m: int) -> int:
        rows, columns = self.tiles(m)
        return (m + _KERNEL - 1) ** 2 * self.shape[0] * rows * columns


def best_tile(convolution: Convolution) -> int:
    """The tile that a convolution gains most by; 0 where it would gain little or nothing."""
    if convolution.shape[3] % _LANES or convolution.filters % _LANES:
        return 0
    plain = convolution.cost(0)
    best = min(_TRANSFORMS, key=convolution.cost)
    return best if convolution.cost(best) < _LEAST_GAIN * plain else 0


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


def transformed_weights(weights: np.ndarray, m: int) -> np.ndarray:
    """The weights of every place of the tile.

    Parameters
    ----------
    weights : numpy.ndarray
        Shape (3, 3, channels, filters).
    m : int

    Returns
    -------
    transformed : numpy.ndarray
        Shape ((m + 2) ** 2, channels, filters), of the type given; summed in float64.
    """
    g = np.array(_TRANSFORMS[m][1])
    places = np.einsum("ai,bj,ijcn->abcn", g, g, weights.astype(np.float64))
    return places.reshape(-1, *weights.shape[2:]).astype(weights.dtype)


def transformed_input(data: te.Tensor, convolution: Convolution, m: int) -> te.Tensor:
    """The input's tiles, transformed: shape ((m + 2) ** 2, tiles, channels).

    In two blocks: along the columns of every row of tiles, then along the rows. Tiles that lie
    beside each other overlap by two columns, which the first block computes once.
    """
    batch, height, width, channels = convolution.shape
    top, left = convolution.padding[:2]
    rows, columns = convolution.tiles(m)
    places = m + _KERNEL - 1
    matrix = _TRANSFORMS[m][0]

    def at(b: Any, y: Any, x: Any, c: Any) -> Any:
        inside = tvm.tirx.all(y >= top, y < height + top, x >= left, x < width + left)
        zero = tvm.tirx.const(0, _TYPE)
        return tvm.tirx.if_then_else(inside, data[b, y - top, x - left, c], zero)

    along = te.compute(
        (batch, rows, places, columns * m + _KERNEL - 1, channels),
        lambda b, t, e, x, c: _chosen(e, matrix, lambda i: at(b, t * m + i, x, c)),
        name=INPUT_ROWS,
    )

    def tile(place: Any, p: Any, c: Any) -> Any:
        b, t, s = p // (rows * columns), p // columns % rows, p % columns
        return _chosen(place % places, matrix, lambda j: along[b, t, place // places, s * m + j, c])

    return te.compute((places**2, batch * rows * columns, channels), tile, name=INPUT)


def multiplied(tiles: te.Tensor, weights: te.Tensor) -> te.Tensor:
    """One matrix product for each place of the tile: shape (places, tiles, filters)."""
    places, count, channels = tiles.shape
    k = te.reduce_axis((0, channels), name="k")
    return te.compute(
        (places, count, weights.shape[2]),
        lambda f, p, n: te.sum(tiles[f, p, k] * weights[f, k, n], axis=k),
        name="winograd_matmul",
    )


def transformed_output(products: te.Tensor, convolution: Convolution, m: int) -> te.Tensor:
    """The convolution's output of what `multiplied` gives, in NHWC; in two blocks again."""
    rows, columns = convolution.tiles(m)
    places = m + _KERNEL - 1
    matrix = _TRANSFORMS[m][2]
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


def legalize(choose: Callable[[Convolution], int]) -> Callable[..., relax.Expr]:
    """A legaliser for ``relax.nn.conv2d`` that turns some convolutions into transformed ones.

    Parameters
    ----------
    choose : callable
        The tile ``m`` for a convolution that could be transformed, 0 to leave it as it is.
    """
    plain = tvm.ir.Op.get("relax.nn.conv2d").get_attr("FLegalize")

    def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        convolution = eligible(call)
        m = choose(convolution) if convolution is not None else 0
        if not m:
            return plain(builder, call)
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


def eligible(call: relax.Call) -> Convolution | None:
    """The convolution of a call, where it is one that could be transformed."""
    data, weights = call.args
    attributes = call.attrs
    if (attributes.data_layout, attributes.kernel_layout) != ("NHWC", "HWIO"):
        return None
    if not isinstance(weights, tvm.ir.expr.GenericConst):
        return None
    shape = [int(extent) for extent in weights.value.shape]
    plain = (
        shape[:2] == [_KERNEL, _KERNEL]
        and str(weights.value.dtype) == _TYPE
        and int(attributes.groups) == 1
        and all(int(step) == 1 for step in (*attributes.strides, *attributes.dilation))
    )
    if not plain:
        return None
    given = tuple(int(extent) for extent in data.ty.shape)
    return Convolution(given, shape[3], tuple(int(p) for p in attributes.padding))


def _chosen(index: Any, matrix: Sequence[Sequence[float]], term: Callable[[int], Any]) -> Any:
    """The product of a matrix's row with a vector; ``index`` says which row.

    A chain of choices: where the loop over the rows is unrolled, one of them is left.
    """
    result = _combination(matrix[-1], term)
    for place in reversed(range(len(matrix) - 1)):
        result = tvm.tirx.Select(index == place, _combination(matrix[place], term), result)
    return result


def _combination(row: Sequence[float], term: Callable[[int], Any]) -> Any:
    """A weighted sum that leaves zeros out, and does not multiply by one."""
    total = None
    for place, factor in enumerate(row):
        if factor == 0:
            continue
        size = factor if total is None else abs(factor)
        value = term(place)
        scaled = value if size == 1 else value * tvm.tirx.const(size, _TYPE)
        if total is None:
            total = scaled
            continue
        total = total + scaled if factor > 0 else total - scaled
    return total
