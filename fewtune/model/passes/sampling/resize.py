"""Resize: each output is a sum of few elements with constant weights.

TVM 0.27 ignores the scales of ONNX's Resize and computes with the ratio of the extents. With a
scale of 1.9, 12 rows become 22, and are read at other coordinates than with a ratio of 22 / 12.
Here the indices and weights of each axis are computed at compile time
(`fewtune.model.passes.sampling.resampling`), and are constant arguments of the kernel. If index
``i`` is read from ``i // factor``, the kernel computes that.

A resize of the last two of four axes stays ``image.resize2d`` until it is lowered, so that the
layout conversion knows it. Its attribute ``coordinate_transformation_mode`` holds the whole plan.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fewtune.errors import InputError
from fewtune.model.passes.attributes import text_attribute
from fewtune.model.passes.op_patterns import INJECTIVE
from fewtune.model.passes.sampling.resampling import KNOWN_COORDINATES, Resampling, Taps
from fewtune.runtime.tvm import relax, te, tvm

_RESIZE_2D = "relax.image.resize2d"
# Sums of up to so many elements are one expression; longer ones are a pass for each axis.
_JOINT_TAPS = 8
# Passes with more elements along their axis are loops.
_UNROLLED_TAPS = 4
# The priority of our legaliser: above the 10 of TVM's own.
_PRIORITY = 11


@functools.cache
def register() -> None:
    """Register the legaliser of this module for ``image.resize2d``.

    It calls TVM's own for operators that this module did not make. An entry of
    `relax.transform.LegalizeOps` is not enough: ``FoldConstant`` uses the registered one.
    """
    usual = tvm.ir.Op.get(_RESIZE_2D).get_attr("FLegalize")

    def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        text = str(call.attrs.coordinate_transformation_mode)
        if not text.startswith("{"):
            return usual(builder, call)
        layout = str(call.attrs.layout)
        if not {"H", "W"} <= set(layout) or len(layout) != 4:
            raise InputError(f"a Resize in layout {layout} cannot be lowered")
        resized = [int(extent) for extent in call.ty.shape]
        axes = [layout.index("H"), layout.index("W")]
        return _lowered(builder, call.args[0], axes, resized, Resampling.parse(text))

    tvm.ir.register_op_attr(_RESIZE_2D, "FLegalize", legalized, level=_PRIORITY)


def converted(bb: Any, inputs: Any, attr: dict[str, Any], opset: int) -> relax.Expr:
    """Convert ONNX's Resize, of operator set 10 and later, or Upsample (9 and before).

    Parameters
    ----------
    bb : relax.BlockBuilder
    inputs : list of relax.Expr or None
        Data, region of interest, scales, sizes: ONNX's order from operator set 11 on.
    attr : dict
        The node's attributes.
    opset : int
        Before 11, coordinates are rounded by the rules of those operator sets.

    Raises
    ------
    InputError
        If scales, sizes or region are not constant, or a mode is unknown.
    """
    data = inputs[0]
    shape = [int(extent) for extent in data.ty.shape]
    roi, scales, sizes = (_constant(given, attr) for given in (*inputs[1:], None, None, None)[:3])
    plan, resized = _plan(shape, roi, scales, sizes, attr, opset)
    is_image = len(shape) == 4 and set(plan.axes) <= {2, 3}
    if not plan.axes:
        return data
    if not is_image or isinstance(data, tvm.ir.expr.GenericConst):
        return bb.normalize(_lowered(bb, data, plan.axes, resized, plan))
    return relax.op.image.resize2d(
        data,
        relax.ShapeExpr(resized[2:]),
        roi=[0.0] * 4,
        layout="NCHW",
        coordinate_transformation_mode=_of_both(plan).text,
    )


def _constant(given: Any, attr: dict[str, Any]) -> np.ndarray | None:
    if given is None:
        return None
    if isinstance(given, tvm.ir.expr.GenericConst):
        return given.value.numpy()
    if isinstance(given, relax.ShapeExpr):
        return np.array([int(value) for value in given.values])
    name = attr.get("tvm_custom", {}).get("name", "")
    raise InputError(
        f"Resize {name!r}: its scales, sizes and region must be constants; "
        "here they depend on the input's values"
    )


def _plan(
    shape: list[int],
    roi: np.ndarray | None,
    scales: np.ndarray | None,
    sizes: np.ndarray | None,
    attr: dict[str, Any],
    opset: int,
) -> tuple[Resampling, list[int]]:
    """How the changed axes are resized, and the shape of the result."""
    axes = [int(axis) % len(shape) for axis in attr.get("axes", range(len(shape)))]
    extents = [shape[axis] for axis in axes]
    if scales is not None and scales.size:
        factors = scales.astype(np.float32)
        outs = [int(np.floor(f * np.float32(n))) for f, n in zip(factors, extents, strict=True)]
    elif sizes is not None and sizes.size:
        outs = [int(size) for size in sizes]
        factors = (np.array(outs) / np.array(extents)).astype(np.float32)
        policy = text_attribute(attr, "keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            factor = factors.min() if policy == "not_larger" else factors.max()
            factors = np.full(len(axes), factor, np.float32)
            outs = [int(np.floor(factor * np.float32(n) + np.float32(0.5))) for n in extents]
    else:
        raise InputError("a Resize has neither scales nor sizes")
    coordinates = text_attribute(attr, "coordinate_transformation_mode", "half_pixel")
    rounding = text_attribute(attr, "nearest_mode", "round_prefer_floor")
    if opset < 11:
        coordinates, rounding = "asymmetric", "simple"
    if coordinates not in KNOWN_COORDINATES:
        raise InputError(f"a Resize has the unknown coordinate mode {coordinates!r}")
    region = np.repeat(np.array([0, 1], np.float32), len(axes))
    crops = coordinates == "tf_crop_and_resize" and roi is not None and roi.size > 0
    if crops and roi is not None:
        region = roi.astype(np.float32)
    changed = [
        i
        for i, (n, out) in enumerate(zip(extents, outs, strict=True))
        if n != out or factors[i] != 1 or (region[i], region[i + len(axes)]) != (0, 1)
    ]
    if outs == extents and coordinates != "tf_crop_and_resize":
        # onnxruntime copies the data if no extent changes, whatever the scales are.
        changed = []
    resized = list(shape)
    for axis, out in zip(axes, outs, strict=True):
        resized[axis] = out
    mode = text_attribute(attr, "mode", "nearest")
    return (
        Resampling(
            axes=[axes[i] for i in changed],
            scales=[float(factors[i]) for i in changed],
            roi=[float(region[i + half * len(axes)]) for half in (0, 1) for i in changed],
            mode={"bilinear": "linear", "trilinear": "linear"}.get(mode, mode),
            coordinates=coordinates,
            rounding=rounding,
            cubic_coefficient=float(attr.get("cubic_coeff_a", -0.75)),
            exclude_outside=bool(attr.get("exclude_outside", 0)),
            antialias=bool(attr.get("antialias", 0)),
            extrapolation=float(attr.get("extrapolation_value", 0.0)),
        ),
        resized,
    )


def _of_both(plan: Resampling) -> Resampling:
    """The plan for both axes 2 and 3; an axis that does not change has a scale of 1."""
    scales = {axis: plan.scales[i] for i, axis in enumerate(plan.axes)}
    begin = {axis: plan.roi[i] for i, axis in enumerate(plan.axes)}
    end = {axis: plan.roi[i + len(plan.axes)] for i, axis in enumerate(plan.axes)}
    values = vars(plan) | {
        "axes": [2, 3],
        "scales": [scales.get(axis, 1.0) for axis in (2, 3)],
        "roi": [begin.get(2, 0.0), begin.get(3, 0.0), end.get(2, 1.0), end.get(3, 1.0)],
    }
    return Resampling(**values)


def _lowered(
    builder: relax.BlockBuilder,
    data: relax.Expr,
    axes: Sequence[int],
    resized: list[int],
    plan: Resampling,
) -> relax.Expr:
    """Call the kernel of a resize; indices and weights are its arguments."""
    shape = [int(extent) for extent in data.ty.shape]
    taps = [plan.taps(position, shape[axis], resized[axis]) for position, axis in enumerate(axes)]
    tables: list[np.ndarray] = []

    def table(values: np.ndarray) -> int:
        # Flat: MetaSchedule takes a constant of two axes for a weight, and changes its layout.
        tables.append(values.ravel())
        return len(tables) - 1

    lines = [_Line(axis, tap, table) for axis, tap in zip(axes, taps, strict=True)]
    is_joint = int(np.prod([tap.count for tap in taps])) <= _JOINT_TAPS

    def compute(values: te.Tensor, *given: te.Tensor) -> te.Tensor:
        if is_joint:
            result = _sum_of(values, lines, given, resized)
        else:
            result, reached = values, list(shape)
            # The axis that shrinks most comes first: then the next passes have least work.
            for line in sorted(lines, key=lambda each: resized[each.axis] / shape[each.axis]):
                reached[line.axis] = resized[line.axis]
                result = _sum_of(result, [line], given, list(reached))
        return _finished(result, lines, given, plan.extrapolation, str(values.dtype))

    constants = [relax.const(values) for values in tables]
    # TVM would call a kernel opaque that reads its indices from a table.
    attributes = {"op_pattern": INJECTIVE} if is_joint else None
    return builder.call_te(
        compute, data, *constants, primfunc_name_hint="resize", primfunc_attrs=attributes
    )


class _Line:
    """The taps of one axis as expressions of a kernel; a table that it does not need is -1."""

    def __init__(self, axis: int, taps: Taps, table: Callable[[np.ndarray], int]) -> None:
        self.axis = axis
        self.count, self.has_gaps = taps.count, taps.has_gaps
        self._quotient = taps.quotient()
        self._places = table(taps.places) if self._quotient is None else -1
        plain = bool(np.all(taps.weights == 1)) and taps.count == 1
        self._weights = -1 if plain else table(taps.weights)
        self._inside = -1 if taps.inside.all() else table(taps.inside.astype(np.int32))

    def place(self, given: Sequence[te.Tensor], at: Any, tap: Any) -> Any:
        if self._quotient is not None:
            multiplier, divisor = self._quotient
            return tvm.tirx.floordiv(at * multiplier, divisor)
        return given[self._places][at * self.count + tap]

    def weight(self, given: Sequence[te.Tensor], at: Any, tap: Any) -> Any:
        return None if self._weights < 0 else given[self._weights][at * self.count + tap]

    def inside(self, given: Sequence[te.Tensor], at: Any) -> Any:
        return None if self._inside < 0 else given[self._inside][at] > 0


def _sum_of(
    values: te.Tensor, lines: list[_Line], given: Sequence[te.Tensor], shape: list[int]
) -> te.Tensor:
    def term(at: tuple[Any, ...], choice: Sequence[Any]) -> Any:
        place, factor = list(at), None
        for line, tap in zip(lines, choice, strict=True):
            place[line.axis] = line.place(given, at[line.axis], tap)
            weight = line.weight(given, at[line.axis], tap)
            if weight is not None:
                factor = weight if factor is None else factor * weight
        value = values(*place)
        if any(line.has_gaps for line in lines):
            is_read = tvm.tirx.NE(factor, tvm.tirx.const(0.0, "float32"))
            value = tvm.tirx.Select(is_read, value, tvm.tirx.const(0, str(values.dtype)))
        return value if factor is None else value.astype("float32") * factor

    if len(lines) == 1 and lines[0].count > _UNROLLED_TAPS:
        tap = te.reduce_axis((0, lines[0].count), name="tap")
        return te.compute(shape, lambda *at: te.sum(term(at, [tap]), axis=tap), name="resampled")

    def summed(*at: Any) -> Any:
        total = None
        for choice in np.ndindex(*(line.count for line in lines)):
            part = term(at, choice)
            total = part if total is None else total + part
        return total

    return te.compute(shape, summed, name="resampled")


def _finished(
    result: te.Tensor,
    lines: list[_Line],
    given: Sequence[te.Tensor],
    extrapolation: float,
    dtype: str,
) -> te.Tensor:
    """The result in the type of the data, with the extrapolation value outside of the region."""
    has_outside = any(line.inside(given, 0) is not None for line in lines)
    if not has_outside and str(result.dtype) == dtype:
        return result

    def value(*at: Any) -> Any:
        number = result(*at).astype(dtype)
        for line in lines:
            inside = line.inside(given, at[line.axis])
            if inside is not None:
                number = tvm.tirx.Select(inside, number, tvm.tirx.const(extrapolation, dtype))
        return number

    return te.compute(result.shape, value, name="resized")
