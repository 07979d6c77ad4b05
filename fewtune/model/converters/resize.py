"""Resize: each output is a sum of few elements with constant weights.

TVM 0.27 ignores the scales of ONNX's Resize and computes with the ratio of the extents. With a
scale of 1.9, 12 rows become 22, and are read at other coordinates than with a ratio of 22 / 12.
Here the indices and weights of each axis are computed at compile time, and are constant arguments
of the kernel. If index ``i`` is read from ``i // factor``, the kernel computes that.

If the scales of an image are the ratios of its extents, it stays ``image.resize2d`` until it is
legalized, so that the layout conversion knows it.

Coordinates are computed in float32, in onnxruntime's order of operations. If two neighbors are
about equally near, the last bit of a coordinate decides which of them is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fewtune.errors import InputError
from fewtune.model.passes.relax_calls import INJECTIVE, text_attribute
from fewtune.runtime.tvm import relax, te, tvm
from fewtune.tvm_compat.values import array_of, is_constant

OPERATOR = "relax.image.resize2d"
_CROP = "tf_crop_and_resize"
_WHOLE = (0.0, 1.0)
_HALF = np.float32(0.5)
# onnxruntime 1.31 rounds a coordinate as a half if it is so near to one.
_SNAPPED_ULPS = 2
# onnxruntime weighs bytes by integers of so many fractional bits, and rounds after each axis.
_BYTE_BITS = 22


class Method(NamedTuple):
    """How the elements that a result sums up are found; the values are ONNX's."""

    mode: str = "nearest"
    coordinates: str = "half_pixel"
    rounding: str = "round_prefer_floor"
    cubic_coefficient: float = -0.75


class Line(NamedTuple):
    """An axis that is resized."""

    axis: int
    extent: int
    resized: int
    scale: np.float32
    # What of the axis is read, in shares of its extent.
    region: tuple[float, float] = _WHOLE


class Taps(NamedTuple):
    """Indices and weights of the elements that each result along an axis sums up.

    Both have the shape (resized, taps).
    """

    places: np.ndarray
    weights: np.ndarray

    def quotient(self) -> tuple[int, int] | None:
        """Integers ``m`` and ``d`` if each result ``i`` is element ``i * m // d``; else None."""
        resized, count = self.places.shape
        if count != 1:
            return None
        read, at = self.places[:, 0], np.arange(resized)
        factor = int(np.argmax(read > 0)) or resized
        for multiplier, divisor in ((1, factor), (int(read[min(1, resized - 1)]), 1)):
            if np.array_equal(at * multiplier // divisor, read):
                return multiplier, divisor
        return None

    def tables(self) -> list[np.ndarray]:
        """What the kernel reads: the indices unless they are a quotient, weights unless all 1."""
        read = [] if self.quotient() is not None else [self.places]
        return [*read, self.weights] if self._is_weighted() else read

    def _is_weighted(self) -> bool:
        return self.places.shape[1] > 1 or bool((self.weights != 1).any())

    def place(self, tables: Iterator[te.Tensor], at: Any, tap: int) -> Any:
        """The index of an element, from the next table unless it is a quotient."""
        found = self.quotient()
        if found is None:
            return next(tables)[at * self.places.shape[1] + tap]
        return tvm.tirx.floordiv(at * found[0], found[1])

    def weight(self, tables: Iterator[te.Tensor], at: Any, tap: int) -> Any:
        """The weight of an element, from the next table; None if all are 1."""
        count = self.places.shape[1]
        return next(tables)[at * count + tap] if self._is_weighted() else None


def converted(bb: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> relax.Expr:
    """Convert a Resize, or an Upsample.

    Raises
    ------
    InputError
        If scales or sizes are not constant, or a mode is not supported.
    """
    # Before operator set 11, scales are the second input.
    given = [*inputs, None, None] if opset >= 11 else [inputs[0], None, inputs[1], None]
    data, regions, scales, sizes = given[:4]
    shape = [int(extent) for extent in data.ty.shape]
    method = _method_of(attributes, opset)
    regions = regions if method.coordinates == _CROP else None
    numbers = [_numbers(each, attributes) for each in (scales, sizes, regions)]
    lines = _lines(shape, numbers, attributes)
    if opset < 11:
        grows = all(line.scale >= 1 for line in lines)
        method = Method(method.mode, "asymmetric", "floor" if grows else "ceil")
    if not lines:
        return data
    sizes_by_axis = {line.axis: line.resized for line in lines}
    resized = [sizes_by_axis.get(axis, extent) for axis, extent in enumerate(shape)]
    if method.coordinates == _CROP:
        return _cropped(bb, data, lines, method, resized, attributes)
    if attributes.get("antialias") and method.mode != "nearest":
        return _smoothed(data, lines, method, attributes)
    is_image = len(shape) == 4 and all(line.axis >= 2 for line in lines)
    is_ratio = all(line.scale == _ratio(line.extent, line.resized) for line in lines)
    if not is_image or not is_ratio or is_constant(data):
        return bb.normalize(_kernel(bb, data, lines, method, resized))
    return relax.op.image.resize2d(
        data,
        relax.ShapeExpr(resized[2:]),
        method=method.mode.replace("nearest", "nearest_neighbor"),
        coordinate_transformation_mode=method.coordinates,
        rounding_method=method.rounding,
        cubic_alpha=method.cubic_coefficient,
    )


def _cropped(
    bb: Any,
    data: relax.Expr,
    lines: Sequence[Line],
    method: Method,
    resized: list[int],
    attributes: dict[str, Any],
) -> relax.Expr:
    """A resize of a region; what lies outside of the data is one given value."""
    if str(data.ty.dtype) != "float32" or attributes.get("antialias"):
        raise _refused(attributes, "a region is resized of float32, without antialias")
    behind = np.zeros([1] * len(resized), np.float32)
    for line in lines:
        along = [-1 if axis == line.axis else 1 for axis in range(len(resized))]
        behind = np.maximum(behind, _is_behind(_coordinates(line, method), line).reshape(along))
    added = behind * np.float32(attributes.get("extrapolation_value", 0.0))
    return relax.op.add(bb.normalize(_kernel(bb, data, lines, method, resized)), relax.const(added))


def _smoothed(
    data: relax.Expr, lines: Sequence[Line], method: Method, attributes: dict[str, Any]
) -> relax.Expr:
    """A resize whose filters grow where an axis shrinks: a product with a matrix an axis."""
    dtype, rank = str(data.ty.dtype), len(data.ty.shape)
    if dtype not in ("float32", "uint8") or any(line.axis < rank - 2 for line in lines):
        raise _refused(attributes, f"antialias of {dtype} is supported along the last two axes")
    whole, half = 2.0**_BYTE_BITS, relax.const(0.5, "float64")
    for line in sorted(lines, key=lambda line: -line.axis):
        matrix = _filters(line, method)
        if dtype == "uint8":
            matrix = np.trunc(matrix * whole + np.copysign(0.5, matrix)).astype(np.float64)
            data = relax.op.astype(data, "float64")
        is_last = line.axis == rank - 1
        weights = relax.const(matrix.T if is_last else matrix, str(matrix.dtype))
        data = relax.op.matmul(*((data, weights) if is_last else (weights, data)))
        if dtype == "uint8":
            rounded = relax.op.floor(data / relax.const(whole, "float64") + half)
            data = relax.op.astype(relax.op.clip(rounded, 0, np.iinfo(dtype).max), dtype)
    return data


def _filters(line: Line, method: Method) -> np.ndarray:
    """Weights of an axis's elements for each result, in onnxruntime's order of operations."""
    stretched = max(np.float32(1), np.float32(1) / line.scale)
    support = np.float32(1 if method.mode == "linear" else 2) * stretched
    center = (_coordinates(line, method) + _HALF).astype(np.float32)[:, None]
    first, last = np.floor(center - support + _HALF), np.floor(center + support + _HALF)
    places = first + np.arange(int((last - first).max()), dtype=np.float32)
    distance = (places - center + _HALF) * (np.float32(1) / stretched)
    weights = (
        np.maximum(0, 1 - np.abs(distance))
        if method.mode == "linear"
        else _cubic_weight(distance, method.cubic_coefficient)
    )
    weights = np.where(places < last, weights, 0).astype(np.float32)
    weights *= np.float32(1) / np.cumsum(weights, axis=1, dtype=np.float32)[:, -1:]
    found = np.zeros((line.resized, line.extent), np.float32)
    read = np.clip(places, 0, line.extent - 1).astype(int)
    np.add.at(found, (np.arange(line.resized)[:, None], read), weights)
    return found


def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize an ``image.resize2d``, for `relax.transform.LegalizeOps`."""
    attributes, layout = call.attrs, str(call.attrs.layout)
    given, resized = ([int(extent) for extent in each.ty.shape] for each in (call.args[0], call))
    method = Method(
        str(attributes.method).removesuffix("_neighbor"),
        str(attributes.coordinate_transformation_mode),
        str(attributes.rounding_method),
        float(attributes.cubic_alpha),
    )
    axes = [axis for axis in map(layout.index, "HW") if given[axis] != resized[axis]]
    lines = [Line(a, given[a], resized[a], _ratio(given[a], resized[a])) for a in axes]
    return _kernel(builder, call.args[0], lines, method, resized)


def _numbers(given: Any, attributes: dict[str, Any]) -> np.ndarray | None:
    if isinstance(given, relax.ShapeExpr):
        return np.array([int(value) for value in given.values])
    found = array_of(given)
    if given is not None and found is None:
        raise _refused(attributes, "its scales, sizes or region depend on the input's values")
    return found if found is not None and found.size else None


def _refused(attributes: dict[str, Any], reason: str) -> InputError:
    name = attributes.get("tvm_custom", {}).get("name", "")
    return InputError(f"Resize {name!r}: {reason}: onnxruntime serves such a model")


def _method_of(attributes: dict[str, Any], opset: int) -> Method:
    mode = text_attribute(attributes, "mode", "nearest")
    found = Method(
        {"bilinear": "linear", "trilinear": "linear"}.get(mode, mode),
        text_attribute(attributes, "coordinate_transformation_mode", "half_pixel"),
        text_attribute(attributes, "nearest_mode", "round_prefer_floor"),
        float(attributes.get("cubic_coeff_a", -0.75)),
    )
    if opset >= 11 and found.coordinates not in COORDINATES:
        raise _refused(attributes, f"coordinates {found.coordinates!r} are not supported")
    if attributes.get("exclude_outside"):
        raise _refused(attributes, "attribute 'exclude_outside' is not supported")
    return found


def _lines(
    shape: list[int], given: Sequence[np.ndarray | None], attributes: dict[str, Any]
) -> list[Line]:
    """The axes that change, in their order, by scales, sizes and regions."""
    scales, sizes, regions = given
    axes = [int(axis) % len(shape) for axis in attributes.get("axes", range(len(shape)))]
    ends = np.repeat(_WHOLE, len(axes)) if regions is None else regions
    read = list(zip(*ends.reshape(2, -1).tolist(), strict=True))
    if scales is not None:
        factors = [np.float32(scale) for scale in scales]
        # onnxruntime 1.31 does not multiply by the region's share, as ONNX does.
        outs = [int(np.floor(f * np.float32(shape[a]))) for f, a in zip(factors, axes, strict=True)]
    elif sizes is not None:
        outs = [int(size) for size in sizes]
        factors = [_ratio(shape[a], out) for a, out in zip(axes, outs, strict=True)]
        kept = {"not_larger": min, "not_smaller": max}
        policy = text_attribute(attributes, "keep_aspect_ratio_policy", "stretch")
        if policy in kept:
            factors = [kept[policy](factors)] * len(factors)
            outs = [int(np.floor(f * shape[a] + 0.5)) for f, a in zip(factors, axes, strict=True)]
    else:
        raise _refused(attributes, "it has neither scales nor sizes")
    lines = [
        Line(axis, shape[axis], out, factor, region)
        for axis, out, factor, region in zip(axes, outs, factors, read, strict=True)
    ]
    # onnxruntime copies the data if no extent changes, whatever the scales are.
    if all(line.extent == line.resized for line in lines):
        return []
    return [e for e in lines if e.extent != e.resized or e.scale != 1 or e.region != _WHOLE]


def _ratio(extent: int, resized: int) -> np.float32:
    return np.float32(resized / extent)


def taps(line: Line, method: Method) -> Taps:
    """The elements that each result along an axis sums up, and their weights."""
    at = _coordinates(line, method)
    if method.mode == "nearest":
        places, weights = _ROUNDINGS[method.rounding](at)[:, None], np.ones((len(at), 1))
    elif method.mode == "linear":
        places, weights = _linear(at, line.extent)
    else:
        base, offsets = np.floor(at), np.arange(-1, 3, dtype=np.float32)
        places = base[:, None] + offsets
        distance = (at - base).astype(np.float32)[:, None] - offsets
        weights = _cubic_weight(distance, method.cubic_coefficient)
    read = np.clip(places, 0, line.extent - 1).astype(np.int32)
    if method.coordinates == _CROP:
        weights = np.where(_is_behind(at, line)[:, None], 0, weights)
    return Taps(read, weights.astype(np.float32))


def _coordinates(line: Line, method: Method) -> np.ndarray:
    at = COORDINATES[method.coordinates](np.arange(line.resized, dtype=np.float32), line)
    return at.astype(np.float32)


def _is_behind(at: np.ndarray, line: Line) -> np.ndarray:
    """Whether coordinates lie outside of the data."""
    return (at < 0) | (at > line.extent - 1)


def _linear(at: np.ndarray, extent: int) -> tuple[np.ndarray, np.ndarray]:
    clamped = np.clip(at, 0, np.float32(extent - 1))
    low = np.minimum(np.trunc(clamped), extent - 1)
    high = np.minimum(low + 1, extent - 1)
    far, near = np.abs(clamped - low), np.abs(clamped - high)
    far, near = np.where(low == high, _HALF, far), np.where(low == high, _HALF, near)
    return np.stack([low, high], 1), np.stack([near, far], 1)


def _cubic_weight(distance: np.ndarray, coefficient: float) -> np.ndarray:
    """The cubic convolution kernel of Keys (1981)."""
    a, x = np.float32(coefficient), np.abs(distance)
    inner = ((a + 2) * x - (a + 3)) * x * x + 1
    # In onnxruntime's order of operations: bytes are rounded by its last bit.
    outer = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x <= 1, inner, np.where(x < 2, outer, 0))


def _snapped(at: np.ndarray) -> np.ndarray:
    """Coordinates in float64; those within a few roundings of a half are that half."""
    wide = at.astype(np.float64)
    halves = np.floor(wide) + 0.5
    is_half = np.abs(wide - halves) <= _SNAPPED_ULPS * np.spacing(np.abs(at))
    return np.where(is_half, halves, wide)


_ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda at: np.ceil(_snapped(at) - 0.5),
    "round_prefer_ceil": lambda at: np.floor(_snapped(at) + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _half_pixel(at: np.ndarray, line: Line) -> np.ndarray:
    return (at + _HALF) / line.scale - _HALF


def _align_corners(at: np.ndarray, line: Line) -> np.ndarray:
    extent, resized = np.float32(line.extent), np.float32(line.resized)
    return at * 0 if resized == 1 else at * (extent - 1) / (resized - 1)


def _of_region(at: np.ndarray, line: Line) -> np.ndarray:
    start, end = map(np.float32, line.region)
    last = np.float32(line.extent - 1)
    if line.resized == 1:
        return at * 0 + _HALF * (start + end) * last
    return start * last + at * (end - start) * last / np.float32(line.resized - 1)


COORDINATES: dict[str, Callable[[np.ndarray, Line], np.ndarray]] = {
    "half_pixel": _half_pixel,
    "pytorch_half_pixel": lambda at, line: _half_pixel(at, line) if line.resized > 1 else at * 0,
    "align_corners": _align_corners,
    "asymmetric": lambda at, line: at / line.scale,
    _CROP: _of_region,
    "tf_half_pixel_for_nn": lambda at, line: (at + _HALF) / line.scale,
}


def _kernel(
    builder: relax.BlockBuilder,
    data: relax.Expr,
    lines: Sequence[Line],
    method: Method,
    resized: list[int],
) -> relax.Expr:
    """Call the kernel of a resize; indices and weights are its arguments."""
    found = [(line.axis, taps(line, method)) for line in lines]
    # Flat: MetaSchedule takes a constant of two axes for a weight, and changes its layout.
    tables = [table.ravel() for _, each in found for table in each.tables()]

    def compute(values: te.Tensor, *given: te.Tensor) -> te.Tensor:
        result = _sum_of(values, found, given, resized)
        is_same = str(result.dtype) == str(values.dtype)
        return result if is_same else tvm.topi.cast(result, str(values.dtype))

    # TVM would call a kernel opaque that reads its indices from a table.
    return builder.call_te(
        compute,
        data,
        *map(relax.const, tables),
        primfunc_name_hint="resize",
        primfunc_attrs={"op_pattern": INJECTIVE},
    )


def _sum_of(
    values: te.Tensor, found: list[tuple[int, Taps]], given: Sequence[te.Tensor], shape: list[int]
) -> te.Tensor:
    def term(at: tuple[Any, ...], choice: Sequence[int]) -> Any:
        place, factor, tables = list(at), None, iter(given)
        for (axis, each), tap in zip(found, choice, strict=True):
            place[axis] = each.place(tables, at[axis], tap)
            weight = each.weight(tables, at[axis], tap)
            if weight is not None:
                factor = weight if factor is None else factor * weight
        value = values(*place)
        return value if factor is None else value.astype("float32") * factor

    def summed(*at: Any) -> Any:
        choices = np.ndindex(*(each.places.shape[1] for _, each in found))
        total = term(at, next(choices))
        for choice in choices:
            total = total + term(at, choice)
        return total

    return te.compute(shape, summed, name="resampled")
