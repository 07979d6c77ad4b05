"""GridSample of images that continue as their mirror images.

TVM 0.27 mirrors coordinates by nested conditions, asks of each element whether it lies in the
image, and writes all of it out for every element read: a cubic kernel compiles for many seconds,
and runs with as many branches. What is read are whole numbers of pixels, so here these are
mirrored, without a condition, and lie in the image.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from fewtune.runtime.tvm import relax, te, tvm

Expr = Any
# Places and weights of the elements that are read along one axis.
_Taps = list[tuple[Expr, Expr]]
# As PyTorch and onnxruntime have it.
_CUBIC = -0.75
_METHODS: dict[str, Callable[[Expr, str], _Taps]]


def converted(bb: relax.BlockBuilder, inputs: list[Any], attr: dict[str, Any]) -> relax.Expr | None:
    """Convert ONNX's GridSample where the image is mirrored; None for another."""
    if _text(attr, "padding_mode", "zeros") != "reflection":
        return None
    data, grid = inputs[:2]
    taps_of = _METHODS.get(_text(attr, "mode", "linear"))
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
                    (_mirrored(place, extent, aligned), weight)
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
    """Where a place between -1 and 1 is, in pixels."""
    if aligned:
        return (place + 1) * (extent - 1) / 2
    return ((place + 1) * extent - 1) / 2


def _mirrored(place: Expr, extent: int, aligned: bool) -> Expr:
    """The pixel that a whole number means: mirrored at the outermost pixels, or at their edges."""
    if aligned and extent == 1:
        return tvm.tirx.const(0, "int32")
    last = 2 * extent - (2 if aligned else 1)
    period = 2 * (extent - 1) if aligned else 2 * extent
    within = tvm.tirx.floormod(place, period)
    return tvm.tirx.Min(within, last - within)


def _nearest(place: Expr, dtype: str) -> _Taps:  # noqa: ARG001
    return [(tvm.tirx.nearbyint(place).astype("int32"), None)]


def _linear(place: Expr, dtype: str) -> _Taps:
    floor = tvm.tirx.floor(place)
    first, share = floor.astype("int32"), place - floor
    return [(first, tvm.tirx.const(1, dtype) - share), (first + 1, share)]


def _cubic(place: Expr, dtype: str) -> _Taps:  # noqa: ARG001
    floor = tvm.tirx.floor(place)
    first, share = floor.astype("int32"), place - floor
    weights = (_far(share + 1), _near(share), _near(1 - share), _far(2 - share))
    return [(first + number - 1, weight) for number, weight in enumerate(weights)]


def _near(distance: Expr) -> Expr:
    return ((_CUBIC + 2) * distance - (_CUBIC + 3)) * distance * distance + 1


def _far(distance: Expr) -> Expr:
    return ((_CUBIC * distance - 5 * _CUBIC) * distance + 8 * _CUBIC) * distance - 4 * _CUBIC


def _text(attr: dict[str, Any], name: str, default: str) -> str:
    value = attr.get(name, default)
    return value.decode() if isinstance(value, bytes) else str(value)


_METHODS = {
    "nearest": _nearest,
    "linear": _linear,
    "bilinear": _linear,
    "cubic": _cubic,
    "bicubic": _cubic,
}
