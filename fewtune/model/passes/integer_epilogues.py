"""Rewrites epilogues of quantized layers, so that layers of one shape are one task.

Scalar constants: TVM writes them into the kernel that multiplies by them. Each layer of a quantized
model has its own scales, so each would be a task. Here the constants become arguments.

Casts: TVM fuses the cast of bytes to floats into the kernel that computes the bytes. That kernel
then writes four times as much, and differs from that of a layer whose bytes are read as bytes. Here
the cast is part of the kernel that reads the bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fewtune.model.passes.relax_calls import (
    ELEMENTWISE,
    FLOAT,
    REDUCTION,
    call_of,
    extents_of,
    rewritten,
)
from fewtune.runtime.tvm import relax, te, tvm
from fewtune.tvm_compat.values import array_of, is_constant, known_array

_ADD, _MULTIPLY, _MEAN, _CAST = "relax.add", "relax.multiply", "relax.mean", "relax.astype"
_BINARY = frozenset({_ADD, _MULTIPLY, "relax.subtract"})
# Operators between a cast from integers and the constants that scale its result.
_BETWEEN = _BINARY | {"relax.maximum", "relax.minimum", "relax.round", "relax.clip", _MEAN}
_BYTES = ("uint8", "int8")


def integer_epilogues(module: tvm.IRModule) -> tvm.IRModule:
    """Turn scalar constants of epilogues into arguments, and let sums and means read bytes.

    Operators on floats that were cast from integers get constants of full rank instead of scalars,
    which TVM keeps as arguments. Sums of two tensors, and means, become kernels that read bytes.
    This comes before operators are legalized, in the layout that they run in.
    """
    return rewritten(module, _Epilogues(module))


@relax.expr_functor.mutator
class _Epilogues(relax.PyExprMutator):
    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        # By variable, whether `_scales` is true of it.
        self._known: dict[relax.Var, bool] = {}

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        name = getattr(call.op, "name", "")
        if name == _MEAN:
            return self._mean(call)
        if name not in _BINARY:
            return call
        first, second = call.args
        found = self._sum(first, second) if name == _ADD else None
        if found is not None:
            return found
        if _is_number(second) and self._scales(first):
            return relax.Call(call.op, [first, _with_axes(second, first)], call.attrs)
        if _is_number(first) and self._scales(second):
            return relax.Call(call.op, [_with_axes(first, second), second], call.attrs)
        return call

    def _sum(self, first: relax.Expr, second: relax.Expr) -> relax.Expr | None:
        """The sum of two tensors of bytes, the first one scaled, as one kernel."""
        scaled, factor = call_of(self, first, _MULTIPLY), None
        if scaled is not None:
            first, factor = scaled.args
        data = [self._bytes_of(each) for each in (first, second)]
        if any(each is None for each in data) or extents_of(data[0]) != extents_of(data[1]):
            return None
        number = np.ones(1, np.float32) if factor is None else array_of(factor)
        if number is None or number.size != 1:
            return None
        return self.builder_.call_te(
            _summed,
            *data,
            relax.const(number.reshape(1)),
            primfunc_name_hint="sum_of_bytes",
            primfunc_attrs={"op_pattern": ELEMENTWISE},
        )

    def _mean(self, call: relax.Call) -> relax.Expr:
        data = self._bytes_of(call.args[0])
        if data is None:
            return call
        axes, keeps = call.attrs.axis, bool(call.attrs.keepdims)
        places = None if axes is None else [int(axis) for axis in axes]
        return self.builder_.call_te(
            lambda given: _averaged(given, places, keeps),
            data,
            primfunc_name_hint="mean_of_bytes",
            primfunc_attrs={"op_pattern": REDUCTION},
        )

    def _bytes_of(self, value: relax.Expr) -> relax.Expr | None:
        """The bytes from which a tensor of floats is cast; None if it is no such cast."""
        cast = call_of(self, value, _CAST)
        if cast is None or str(cast.ty.dtype) != FLOAT:
            return None
        return cast.args[0] if str(cast.args[0].ty.dtype) in _BYTES else None

    def _scales(self, value: relax.Expr) -> bool:
        """Whether a value was cast from integers, and perhaps scaled or shifted since."""
        if not isinstance(value, relax.Var):
            return False
        if value not in self._known:
            self._known[value] = self._found(self.lookup_binding(value))
        return self._known[value]

    def _found(self, call: relax.Expr | None) -> bool:
        if not isinstance(call, relax.Call) or "float" not in str(call.ty.dtype):
            return False
        name = getattr(call.op, "name", "")
        if name == _CAST:
            return "int" in str(call.args[0].ty.dtype)
        # A kernel of `_sum` or `_mean`.
        if name == "relax.call_tir":
            return any(str(each.ty.dtype) in _BYTES for each in call.args[1].fields)
        return name in _BETWEEN and any(self._scales(each) for each in call.args)


def _is_number(value: relax.Expr) -> bool:
    return is_constant(value) and not value.value.shape


def _with_axes(number: relax.Expr, like: relax.Expr) -> relax.Expr:
    return relax.const(np.reshape(known_array(number), (1,) * len(like.ty.shape)))


def _summed(first: te.Tensor, second: te.Tensor, factor: te.Tensor) -> te.Tensor:
    def at(*place: Any) -> Any:
        return first(*place).astype(FLOAT) * factor[0] + second(*place).astype(FLOAT)

    return te.compute(first.shape, at, name="sum_of_bytes")


def _averaged(given: te.Tensor, axes: list[int] | None, keeps: bool) -> te.Tensor:
    floats = tvm.topi.cast(given, FLOAT)
    rank = len(given.shape)
    places = range(rank) if axes is None else [axis % rank for axis in axes]
    count = np.prod([int(given.shape[place]) for place in places])
    total = tvm.topi.sum(floats, axes, keeps)
    return tvm.topi.divide(total, tvm.tirx.const(float(count), FLOAT))
