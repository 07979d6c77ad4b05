"""RoiAlign of mode max, or with a number of samples that depends on the region.

For mode max, a sample is the largest of four pixels, each times its weight, in onnxruntime and in
ONNX's reference; TVM 0.27 takes their sum. The mean of a region without samples is zero in
onnxruntime, and NaN in TVM.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

from fewtune.model.passes.attributes import text_attribute
from fewtune.runtime.tvm import relax, te, tvm

Expr = Any


def converted(
    bb: relax.BlockBuilder, inputs: list[Any], attr: dict[str, Any], default: str
) -> relax.Expr | None:
    """Convert ONNX's RoiAlign; None for means of a fixed number of samples: TVM is right there.

    Parameters
    ----------
    bb : relax.BlockBuilder
    inputs : list of relax.Expr
        Images, regions, and the image of each region.
    attr : dict
        The node's attributes.
    default : str
        The transformation of coordinates if the node names none.
    """
    is_largest = text_attribute(attr, "mode", "avg") == "max"
    ratio = int(attr.get("sampling_ratio", 0))
    if (ratio > 0 and not is_largest) or len(inputs) != 3:
        return None
    data, regions, _ = inputs
    if str(data.ty.dtype) != str(regions.ty.dtype):
        return None
    sizes = [int(attr.get(f"output_{side}", 1)) for side in ("height", "width")]
    scale = float(attr.get("spatial_scale", 1.0))
    is_shifted = text_attribute(attr, "coordinate_transformation_mode", default) == "half_pixel"
    dtype = str(data.ty.dtype)

    def bins(places: te.Tensor, region: Expr) -> list[tuple[Expr, Expr, Expr]]:
        """For y and x: the beginning of a region, the length of its parts, samples of a part."""
        found = []
        for axis, size in ((1, sizes[0]), (0, sizes[1])):
            begin, end = (
                places(region, place) * _number(scale, dtype) for place in (axis, axis + 2)
            )
            if is_shifted:
                begin, end = (each - _number(0.5, dtype) for each in (begin, end))
                length = end - begin
            else:
                length = tvm.tirx.Max(end - begin, _number(1, dtype))
            step = length / _number(size, dtype)
            samples = tvm.tirx.ceil(step).astype("int32")
            samples = tvm.tirx.const(ratio, "int32") if ratio > 0 else samples
            found.append((begin, step, samples))
        return found

    def compute(images: te.Tensor, places: te.Tensor, numbers: te.Tensor) -> te.Tensor:
        shape = [places.shape[0], images.shape[1], *sizes]

        def joined(region: Expr, channel: Expr, *part: Expr) -> Expr:
            axes, at = [], []
            for place, (begin, step, samples) in zip(part, bins(places, region), strict=True):
                axis = te.reduce_axis((0, samples), name="sample")
                axes.append(axis)
                within = axis.var.astype(dtype) + _number(0.5, dtype)
                first = begin + place.astype(dtype) * step
                at.append(first + within * step / samples.astype(dtype))
            image = numbers(region).astype("int32")
            extents = [int(extent) for extent in images.shape[2:]]
            join = tvm.tirx.Max if is_largest else operator.add
            sample = _sample(
                at, extents, lambda *pixel: images(image, channel, *pixel), join, dtype
            )
            return te.max(sample, axis=axes) if is_largest else te.sum(sample, axis=axes)

        found = te.compute(shape, joined, name="roi_align")
        if ratio > 0:
            return found

        def counted(region: Expr, channel: Expr, *part: Expr) -> Expr:
            """The result, or zero for a region without samples, such as an empty one."""
            counts = [samples for _, _, samples in bins(places, region)]
            value = found(region, channel, *part)
            if not is_largest:
                value = value / (counts[0] * counts[1]).astype(dtype)
            is_any = tvm.tirx.all(*(count > 0 for count in counts))
            return tvm.tirx.Select(is_any, value, _number(0, dtype))

        return te.compute(shape, counted, name="roi_align_counted")

    return bb.call_te(compute, *inputs, primfunc_name_hint="roi_align")


def _sample(
    at: list[Expr],
    extents: list[int],
    read: Callable[..., Expr],
    join: Callable[[Expr, Expr], Expr],
    dtype: str,
) -> Expr:
    """The four pixels around a place, each times its weight, joined; 0 outside the image."""
    one, off, lines = _number(1, dtype), [], []
    for place, extent in zip(at, extents, strict=True):
        off += [place < _number(-1, dtype), place > _number(extent, dtype)]
        # In this order, NaN becomes a place in the image.
        inside = tvm.tirx.Min(tvm.tirx.Max(place, _number(0, dtype)), _number(extent - 1, dtype))
        low = inside.astype("int32")
        share = inside - low.astype(dtype)
        lines.append([(low, one - share), (tvm.tirx.min(low + 1, extent - 1), share)])
    products = [
        read(row, column) * (of_row * of_column)
        for row, of_row in lines[0]
        for column, of_column in lines[1]
    ]
    value = functools.reduce(join, products)
    return tvm.tirx.if_then_else(tvm.tirx.any(*off), _number(0, dtype), value)


def _number(value: float, dtype: str) -> Expr:
    return tvm.tirx.const(value, dtype)
