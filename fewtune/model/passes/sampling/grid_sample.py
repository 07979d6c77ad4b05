"""GridSample with reflection padding.

TVM 0.27 reflects the coordinates by nested conditions, checks whether each element lies in the
image, and repeats both for every element that it reads. A cubic kernel compiles for many seconds,
and has many branches. Here the integer indices of the pixels are reflected, by arithmetic alone;
they always lie in the image.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from fewtune.model.passes.attributes import text_attribute
from fewtune.runtime.tvm import relax, te, tvm

Expr = Any
# Indices and weights of the elements that are read along one axis.
_Taps = list[tuple[Expr, Expr]]
# The coefficient of the cubic kernel in PyTorch and onnxruntime.
_CUBIC = -0.75
_METHODS: dict[str, Callable[[Expr, str], _Taps]]


def converted(bb: relax.BlockBuilder, inputs: list[Any], attr: dict[str, Any]) -> relax.Expr | None:
    """Convert ONNX's GridSample with reflection padding.

    Parameters
    ----------
    bb : BlockBuilder
    inputs : list of Expr
        The image, shape (batch, channels, *extents), and the grid, shape (batch, *outputs, axes).
    attr : dict

    Returns
    -------
    result : Expr or None
        None for other paddings, unknown modes, and a grid of another type than the image.
    """
    if text_attribute(attr, "padding_mode", "zeros") != "reflection":
        return None
    data, grid = inputs[:2]
    taps_of = _METHODS.get(text_attribute(attr, "mode", "linear"))
    if taps_of is None or str(data.ty.dtype) != str(grid.ty.dtype):
        return None
    extents = [int(extent) for extent in data.ty.shape][2:]
    aligned = bool(attr.get("align_corners", 0))

    def compute(image: te.Tensor, places: te.Tensor) -> te.Tensor:
        def sampled(n: Expr, channel: Expr, *at: Expr) -> Expr:
            # A grid names the last axis first.
            given = [places(n, *at, len(extents) - 1 - axis) for axis in range(len(extents))]
            lines = [
                [
                    (_reflected(place, extent, aligned), weight)
                    for place, weight in taps_of(_pixels(each, extent, aligned), str(image.dtype))
                ]
                for each, extent in zip(given, extents, strict=True)
            ]
            return _summed(lines, lambda *found: image(n, channel, *found))

        shape = [image.shape[0], image.shape[1], *places.shape[1:-1]]
        return te.compute(shape, sampled, name="grid_sample")

    return bb.call_te(compute, data, grid, primfunc_name_hint="grid_sample")


def _summed(lines: Sequence[_Taps], read: Callable[..., Expr]) -> Expr:
    total = None
    for taps in itertools.product(*lines):
        value = read(*(place for place, _ in taps))
        for _, weight in taps:
            value = value if weight is None else value * weight
        total = value if total is None else total + value
    return total


def _pixels(place: Expr, extent: int, aligned: bool) -> Expr:
    """The coordinate in pixels of a grid's coordinate, which is between -1 and 1 in the image."""
    if aligned:
        return (place + 1) * (extent - 1) / 2
    return ((place + 1) * extent - 1) / 2


def _reflected(place: Expr, extent: int, aligned: bool) -> Expr:
    """The pixel of an index, reflected at the outermost pixels (aligned) or at their edges."""
    if aligned and extent == 1:
        return tvm.tirx.const(0, "int32")
    last = 2 * extent - (2 if aligned else 1)
    period = 2 * (extent - 1) if aligned else 2 * extent
    within = tvm.tirx.floormod(place, period)
    return tvm.tirx.Min(within, last - within)


def _nearest(place: Expr, dtype: str) -> _Taps:
    return [(tvm.tirx.nearbyint(place).astype("int32"), None)]


def _linear(place: Expr, dtype: str) -> _Taps:
    floor = tvm.tirx.floor(place)
    first, share = floor.astype("int32"), place - floor
    return [(first, tvm.tirx.const(1, dtype) - share), (first + 1, share)]


def _cubic(place: Expr, dtype: str) -> _Taps:
    floor = tvm.tirx.floor(place)
    first, share = floor.astype("int32"), place - floor
    weights = (_far(share + 1), _near(share), _near(1 - share), _far(2 - share))
    return [(first + number - 1, weight) for number, weight in enumerate(weights)]


def _near(distance: Expr) -> Expr:
    return ((_CUBIC + 2) * distance - (_CUBIC + 3)) * distance * distance + 1


def _far(distance: Expr) -> Expr:
    return ((_CUBIC * distance - 5 * _CUBIC) * distance + 8 * _CUBIC) * distance - 4 * _CUBIC


_METHODS = {
    "nearest": _nearest,
    "linear": _linear,
    "bilinear": _linear,
    "cubic": _cubic,
    "bicubic": _cubic,
}
