"""Converters of ONNX operators into operators that have a layout rule.

TVM 0.27 imports ``Clip`` as opaque kernels, and ``Max`` and ``Min`` as a stack and a reduction. It
has no layout rule for ``leakyrelu``. So a network in NHWC gets transposes around each of them. Here
they become ``maximum`` and ``minimum``, with constants of the other operand's rank. These have
layout rules, and fuse into the convolution before them.

Some converters of this module replace wrong ones of TVM.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from fewtune.model.passes.elementwise.special_converters import (
    integer_cast,
    is_float,
    special_converters,
    unsigned_cast,
)
from fewtune.model.passes.sampling import grid_sample, resize, roi_align
from fewtune.process.optional_steps import OptionalSteps
from fewtune.runtime.tvm import relax, tvm

STEP = "layout_friendly"
# The least and the largest value of ONNX's byte types, by number, or by name for a CastLike.
_BYTES = dict.fromkeys((2, "uint8"), (0, 255)) | dict.fromkeys((3, "int8"), (-128, 127))
# Operators of this module that TVM gets wrong: their converters are not optional.
_CORRECTED = frozenset({"ArgMax", "ArgMin", "Cast", "GridSample", "Resize", "RoiAlign", "Upsample"})


@contextlib.contextmanager
def layout_friendly(steps: OptionalSteps | None = None) -> Iterator[None]:
    """Within the block, TVM's importer uses the converters of this module.

    They are the optional step ``layout_friendly``, except those of operators that TVM gets wrong.

    Parameters
    ----------
    steps : OptionalSteps, optional
        All steps by default.
    """
    from tvm.relax.frontend.onnx import onnx_frontend

    steps = steps or OptionalSteps()

    of_largest, of_least = (
        functools.partial(_index, operator) for operator in (relax.op.argmax, relax.op.argmin)
    )
    ours: dict[str, dict[str, Any]] = {
        "ArgMax": dict.fromkeys(("_impl_v1", "_impl_v11", "_impl_v12"), of_largest),
        "ArgMin": dict.fromkeys(("_impl_v1", "_impl_v11", "_impl_v12"), of_least),
        "Cast": {"_impl_v13": _cast},
        "Clip": {"_impl_v1": _clip_by_attributes, "_impl_v13": _clip},
        "Max": {"_impl_v1": functools.partial(_paired, relax.op.maximum)},
        "Min": {"_impl_v1": functools.partial(_paired, relax.op.minimum)},
        "Gather": {"_impl_v13": _gather},
        "GridSample": {"_impl_v16": _grid_sample},
        "LeakyRelu": {"_impl_v1": _leaky_relu},
        "HardSigmoid": {"_impl_v1": _hard_sigmoid},
        "HardSwish": {"_impl_v14": _hard_swish},
        "Resize": {
            "_impl_v10": functools.partial(_resize, 10),
            "_impl_v11": functools.partial(_resize, 11),
            "_impl_v18": functools.partial(_resize, 18),
        },
        "RoiAlign": {
            "_impl_v10": functools.partial(_roi_align, "output_half_pixel"),
            "_impl_v16": functools.partial(_roi_align, "half_pixel"),
        },
        "Upsample": {"_impl_v9": functools.partial(_resize, 9)},
    }
    special = special_converters()
    with contextlib.ExitStack() as undo:
        for name, versions in (ours | special).items():
            converter = getattr(onnx_frontend, name)
            for version, convert in versions.items():
                theirs = getattr(converter, version, None)
                if version in vars(converter):
                    undo.callback(setattr, converter, version, vars(converter)[version])
                else:
                    undo.callback(delattr, converter, version)
                is_optional = name not in _CORRECTED and name not in special
                guarded = _optional(steps, convert) if is_optional else convert
                ours_first = functools.partial(_converted, guarded, theirs)
                setattr(converter, version, staticmethod(ours_first))
        yield


def _optional(steps: OptionalSteps, convert: Any) -> Any:
    """A converter as the optional step; it gives None if the step is left out."""
    return steps.guarded(STEP, convert, lambda *_arguments: None)


def _converted(ours: Any, theirs: Any, bb: Any, inputs: Any, attr: Any, params: Any) -> relax.Expr:
    """Convert by a rule of this module, or by TVM's own if that does not apply."""
    converted = ours(bb, [_constant_of(given, params) for given in inputs], attr)
    return converted if converted is not None else theirs(bb, inputs, attr, params)


def _index(operator: Any, bb: Any, inputs: list[Any], attr: dict[str, Any]) -> relax.Expr | None:
    """The index of the largest or least element; of the first or the last, if several are equal.

    TVM's reduction starts from index -1 and the lowest number of the type. If all numbers of a row
    are the lowest, such as bytes of 0, the result is -1. Here it is at least 0.
    """
    (data,) = inputs
    if not isinstance(data, relax.Expr) or data.ty.shape is None:
        return None
    axis = int(attr.get("axis", 0)) % data.ty.ndim
    extent = data.ty.shape[axis]
    is_last = bool(attr.get("select_last_index", 0))
    if not isinstance(extent, tvm.tirx.IntImm):
        return None
    if is_last:
        data = bb.normalize(relax.op.flip(data, axis=axis))
    found = bb.normalize(operator(data, axis, bool(attr.get("keepdims", 1))))
    found = bb.normalize(relax.op.maximum(found, relax.const(0, "int64")))
    return relax.op.subtract(relax.const(int(extent) - 1, "int64"), found) if is_last else found


def _cast(bb: Any, inputs: list[Any], attr: dict[str, Any]) -> relax.Expr | None:
    for found in (
        integer_cast(inputs[0], attr["to"]),
        unsigned_cast(bb, inputs[0], attr["to"]),
    ):
        if found is not None:
            return found
    return _bounded_cast(bb, inputs, attr)


def _bounded_cast(bb: Any, inputs: list[Any], attr: dict[str, Any]) -> relax.Expr | None:
    """Cast floats to bytes if bounds show that they fit; TVM's own cast checks each number."""
    (data,) = inputs
    limits = _BYTES.get(attr["to"])
    if limits is None or not is_float(data):
        return None
    for operator, limit, fits in (
        ("relax.minimum", limits[1], float.__le__),
        ("relax.maximum", limits[0], float.__ge__),
    ):
        call = bb.lookup_binding(data) if isinstance(data, relax.Var) else data
        if not isinstance(call, relax.Call) or getattr(call.op, "name", "") != operator:
            return None
        data, bound = call.args
        if not isinstance(bound, tvm.ir.expr.GenericConst):
            return None
        if not all(fits(float(each), float(limit)) for each in bound.value.numpy().reshape(-1)):
            return None
    return relax.op.astype(inputs[0], "uint8" if limits[0] == 0 else "int8")


def _clip_by_attributes(bb: Any, inputs: list[Any], attr: dict[str, Any]) -> relax.Expr | None:
    return _clipped(bb, inputs[0], attr.get("min"), attr.get("max"))


def _clip(bb: Any, inputs: list[Any], attr: dict[str, Any]) -> relax.Expr | None:
    bounds: list[float | None] = []
    for bound in [*inputs[1:], None, None][:2]:
        if bound is None:
            bounds.append(None)
        elif isinstance(bound, tvm.ir.expr.GenericConst):
            # Some exporters write it with an axis.
            bounds.append(float(bound.value.numpy().reshape(())))
        else:
            return None
    # A bound of NaN is no bound (ONNX): TVM's own converter knows that.
    if any(bound is not None and np.isnan(bound) for bound in bounds):
        return None
    return _clipped(bb, inputs[0], *bounds)


def _clipped(
    bb: Any, data: relax.Expr, least: float | None, most: float | None
) -> relax.Expr | None:
    if not is_float(data):
        return None
    # A missing bound is the least or the largest finite number (ONNX), so infinities are clipped.
    limits = np.finfo(str(data.ty.dtype))
    least = float(limits.min) if least is None else least
    most = float(limits.max) if most is None else most
    if least != -np.inf:
        data = bb.normalize(relax.op.maximum(data, _constant_like(data, least)))
    if most != np.inf:
        data = bb.normalize(relax.op.minimum(data, _constant_like(data, most)))
    return data


def _paired(
    operator: Any,
    bb: Any,
    inputs: list[Any],
    attr: dict[str, Any],
) -> relax.Expr | None:
    # `rewrites.chain_variadic` has split operators of more than two inputs into pairs.
    if len(inputs) != 2 or all(isinstance(given, tvm.ir.expr.GenericConst) for given in inputs):
        return None
    return operator(*inputs)


def _gather(bb: Any, inputs: list[Any], attr: dict[str, Any]) -> relax.Expr | None:
    """Gather by constant indices; TVM's own converter handles negative ones at run time."""
    data, indices = inputs
    constant = tvm.ir.expr.GenericConst
    if not isinstance(indices, constant) or isinstance(data, constant | relax.ShapeExpr):
        return None
    axis = attr.get("axis", 0)
    extent = data.ty.shape[axis] if data.ty.shape is not None else None
    places = indices.value.numpy()
    if not isinstance(extent, tvm.tirx.IntImm) or places.ndim == 0:
        return None
    places = np.where(places < 0, places + int(extent), places)
    return relax.op.take(data, relax.const(places, str(places.dtype)), axis, mode="clip")


def _leaky_relu(bb: Any, inputs: list[Any], attr: dict[str, Any]) -> relax.Expr | None:
    (data,) = inputs
    slope = float(attr.get("alpha", 0.01))
    if not is_float(data) or not 0 <= slope <= 1:
        return None
    below = bb.normalize(relax.op.multiply(data, _constant_like(data, slope)))
    if slope == 0:
        # Infinity times 0 is NaN.
        is_above = relax.op.greater(data, _constant_like(data, 0.0))
        return relax.op.where(bb.normalize(is_above), data, below)
    return relax.op.maximum(data, below)


def _hard_sigmoid(bb: Any, inputs: list[Any], attr: dict[str, Any]) -> relax.Expr | None:
    (data,) = inputs
    if not is_float(data):
        return None
    slope, shift = float(attr.get("alpha", 0.2)), float(attr.get("beta", 0.5))
    scaled = bb.normalize(relax.op.multiply(data, _constant_like(data, slope)))
    return _clipped(bb, bb.normalize(relax.op.add(scaled, _constant_like(data, shift))), 0.0, 1.0)


def _hard_swish(bb: Any, inputs: list[Any], attr: dict[str, Any]) -> relax.Expr | None:
    gate = _hard_sigmoid(bb, inputs, {"alpha": 1 / 6, "beta": 0.5})
    return None if gate is None else relax.op.multiply(inputs[0], gate)


def _constant_like(data: relax.Expr, value: float) -> relax.Expr:
    """A constant with the rank of ``data``, which the layout conversion needs."""
    dtype = str(data.ty.dtype)
    return relax.const(np.full((1,) * data.ty.ndim, value, dtype), dtype)


def _grid_sample(bb: Any, inputs: list[Any], attr: dict[str, Any]) -> relax.Expr | None:
    return grid_sample.converted(bb, inputs, attr)


def _roi_align(default: str, bb: Any, inputs: list[Any], attr: dict[str, Any]) -> relax.Expr | None:
    return roi_align.converted(bb, inputs, attr, default)


def _resize(opset: int, bb: Any, inputs: list[Any], attr: dict[str, Any]) -> relax.Expr:
    # Before operator set 11, scales are the second input.
    places = inputs if opset >= 11 else [inputs[0], None, *inputs[1:]]
    return resize.converted(bb, places, attr, opset)


def _constant_of(given: Any, params: Any) -> Any:
    """The constant that an input is bound to, or the input itself."""
    from tvm.relax.frontend.onnx import onnx_frontend

    return given if given is None else onnx_frontend.get_constant(given, params)
