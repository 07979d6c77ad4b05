"""Converters of ONNX operators that TVM gets wrong for NaN, infinities and numbers out of range.

TVM simplifies by identities that hold for finite numbers only: ``x == x`` becomes true, and ``0 *
x`` becomes 0.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from fewtune.runtime.tvm import relax, te, tvm

# The integer types to which a processor casts by an instruction; by ONNX's number or name.
_INTEGERS = {6: "int32", 7: "int64", "int32": "int32", "int64": "int64"}
_UNSIGNED = (13, "uint64")


def special_converters() -> dict[str, dict[str, Any]]:
    """Converters by operator and version, as in `fewtune.model.passes.converters`."""
    return {
        "Sign": {"_impl_v9": _sign},
        "ThresholdedRelu": {"_impl_v1": _thresholded_relu},
        "Equal": {"_impl_v13": _equal_to_itself},
        "LessOrEqual": {"_impl_v1": _equal_to_itself},
        "GreaterOrEqual": {"_impl_v1": _equal_to_itself},
        "Mul": {"_impl_v7": functools.partial(_with_zero, relax.op.multiply)},
        "Div": {"_impl_v7": functools.partial(_with_zero, relax.op.divide)},
    }


def integer_cast(data: relax.Expr, to: Any) -> relax.Expr | None:
    """Cast floats to int32 or int64 by the processor's instruction; None for other casts.

    TVM's own cast turns NaN into 0, and values beyond int32 are taken modulo 2^32.
    """
    wanted = _INTEGERS.get(to)
    if wanted is None or not is_float(data):
        return None
    return relax.op.astype(data, wanted)


def unsigned_cast(bb: Any, data: relax.Expr, to: Any) -> relax.Expr | None:
    """Cast floats to uint64; None for other casts.

    A negative number becomes the one that is equal modulo 2^64, as in onnxruntime. A processor's
    own instruction gives the largest number instead.
    """
    if to not in _UNSIGNED or not is_float(data):
        return None
    beyond = tvm.tirx.const(2.0**63, str(data.ty.dtype))
    high_bit = tvm.tirx.const(-(2**63), "int64")

    def bits(value: Any) -> Any:
        rest = tvm.tirx.Cast("int64", value - beyond)
        low = tvm.tirx.Cast("int64", value)
        return tvm.tirx.Select(value >= beyond, tvm.tirx.bitwise_xor(rest, high_bit), low)

    def converted(tensor: te.Tensor) -> te.Tensor:
        return te.compute(
            tensor.shape, lambda *at: tvm.tirx.Cast("uint64", bits(tensor(*at))), name="cast"
        )

    return bb.emit_te(converted, data, primfunc_name_hint="cast")


def _sign(bb: Any, inputs: list[Any], attr: dict[str, Any]) -> relax.Expr | None:
    (data,) = inputs
    if not is_float(data):
        return None
    signs = bb.normalize(relax.op.sign(data))
    return relax.op.where(bb.normalize(relax.op.isnan(data)), data, signs)


def _thresholded_relu(bb: Any, inputs: list[Any], attr: dict[str, Any]) -> relax.Expr | None:
    (data,) = inputs
    if not is_float(data):
        return None
    kind = str(data.ty.dtype)
    is_above = relax.op.greater(data, relax.const(float(attr.get("alpha", 1.0)), kind))
    return relax.op.where(bb.normalize(is_above), data, relax.const(0.0, kind))


def _equal_to_itself(bb: Any, inputs: list[Any], attr: dict[str, Any]) -> relax.Expr | None:
    """Compare a value with itself, which is false for NaN only."""
    first, second = inputs
    if not isinstance(first, relax.Var) or not first.same_as(second) or not is_float(first):
        return None
    return relax.op.logical_not(bb.normalize(relax.op.isnan(first)))


def _with_zero(
    operator: Any,
    bb: Any,
    inputs: list[Any],
    attr: dict[str, Any],
) -> relax.Expr | None:
    """Make a factor of 0 an argument: TVM would simplify a product with a literal 0 to 0."""
    is_zero = [_is_zero(given) for given in inputs]
    if not any(is_zero) or all(isinstance(each, tvm.ir.GenericConst) for each in inputs):
        return None
    kind = str(inputs[0].ty.dtype)
    flat = relax.const(np.zeros((1,), kind), kind)
    operands = [flat if zero else given for zero, given in zip(is_zero, inputs, strict=True)]
    if any(given.ty.ndim < 1 for given in operands):
        return None
    return operator(*operands)


def _is_zero(value: Any) -> bool:
    is_scalar = isinstance(value, tvm.ir.GenericConst) and value.ty.ndim == 0
    return is_scalar and is_float(value) and float(value.value.numpy()) == 0


def is_float(data: Any) -> bool:
    """Whether a converter's input is an expression of floats whose rank is known."""
    if not isinstance(data, relax.Expr) or not str(data.ty.dtype).startswith("float"):
        return False
    return bool(data.ty.ndim >= 0)
