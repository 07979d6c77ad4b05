"""Convolutions and products of bytes: unsigned activations, signed constant weights, int32 sums.

Four channels are one word of 32 bits (`fewtune.model.passes.packed_products`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from fewtune.model.passes.packed_products import (
    Window,
    Words,
    convolved,
    merged,
    multiplied,
    packed,
    padded,
)
from fewtune.model.passes.pad_filters import without_padding
from fewtune.runtime import dot_products
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import has_feature, relax, te, tvm

CONVOLUTION, PRODUCT = "relax.nn.conv2d", "relax.matmul"
_DATA, _WEIGHTS, _SUMS = "uint8", "int8", "int32"
# Bytes less their zero point.
_CENTRED = "int16"
# TVM's kind of operator (OpPatternKind) that is fused with the elementwise operators behind it.
_OUT_ELEMENTWISE_FUSABLE = 4


def integer_kernels(
    module: tvm.IRModule, target: tvm.target.Target, traits: CpuTraits
) -> tvm.IRModule:
    """Replace products of bytes by kernels.

    Parameters
    ----------
    module : IRModule
        Before its operators are legalised; convolutions in NHWC.
    target : Target
        Of a CPU; its features say how four bytes are multiplied.
    traits : CpuTraits

    Returns
    -------
    module : IRModule
        Convolutions and products that sum unsigned bytes, less a constant zero point, times
        constant signed ones are calls of kernels; others are left to TVM.
    """
    form = dot_products.form_of(lambda feature: has_feature(target, feature))
    writer = _Kernels(module, form, traits.lanes(_SUMS))
    for variable, function in module.functions_items():
        if isinstance(function, relax.Function):
            writer.builder_.update_func(variable, writer.visit_expr(function))
    return writer.builder_.finalize()


@relax.expr_functor.mutator
class _Kernels(relax.PyExprMutator):
    def __init__(self, module: tvm.IRModule, form: str, lanes: int) -> None:
        super().__init__(module)
        self._words = Words(_DATA, partial(dot_products.dot4, form), "integer")
        self._lanes = lanes

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        name = getattr(call.op, "name", "")
        made = None
        if name == CONVOLUTION:
            made = self._convolution(call)
        elif name == PRODUCT:
            made = self._product(call)
        return call if made is None else made

    def _convolution(self, call: relax.Call) -> relax.Expr | None:
        weights, attributes = _weights_of(call), call.attrs
        data, zero = self._bytes_of(call.args[0])
        layouts = (str(attributes.data_layout), str(attributes.kernel_layout))
        if weights is None or data is None or layouts != ("NHWC", "HWIO"):
            return None
        groups, channels = int(attributes.groups), int(data.ty.shape[-1])
        window = Window(attributes, zero)
        compute: Any
        if groups == channels == weights.shape[-1]:
            given, name = weights[:, :, 0].astype(_SUMS), "integer_depthwise_conv2d"
            compute = partial(_depthwise, window=window)
        else:
            joined, groups = merged(weights, groups, self._lanes)
            given, name = packed(joined, self._lanes), "integer_conv2d"
            compute = partial(convolved, self._words, window=window, groups=groups)

        def computed(data: te.Tensor, weights: te.Tensor, *around: te.Tensor) -> te.Tensor:
            return compute(data, weights, around=around[0] if around else None)

        result = self._emit(call, data, given, computed, name, window.around(_DATA))
        sums = weights.astype(np.int32).sum((0, 1, 2))
        return self._without_zero(result, sums.reshape(1, 1, 1, -1) * zero)

    def _product(self, call: relax.Call) -> relax.Expr | None:
        weights = _weights_of(call)
        data, zero = self._bytes_of(call.args[0])
        if weights is None or data is None or weights.ndim != 2 or len(data.ty.shape) < 2:  # noqa: PLR2004
            return None
        compute = partial(multiplied, self._words)
        given = packed(weights, self._lanes)
        result = self._emit(call, data, given, compute, "integer_matmul")
        return self._without_zero(result, weights.astype(np.int32).sum(0) * zero)

    def _bytes_of(self, data: relax.Expr) -> tuple[relax.Expr | None, int]:
        """The unsigned bytes that a product reads, and their zero point."""
        if str(data.ty.dtype) == _DATA:
            return data, 0
        turned = self._call_of(data, "relax.permute_dims")
        taken = self._call_of(turned.args[0] if turned is not None else data, "relax.subtract")
        wide = self._call_of(taken.args[0], "relax.astype") if taken is not None else None
        if taken is None or wide is None or str(wide.args[0].ty.dtype) != _DATA:
            return None, 0
        zero = taken.args[1]
        if not isinstance(zero, tvm.ir.expr.GenericConst) or zero.value.numpy().size != 1:
            return None, 0
        given = wide.args[0]
        if turned is not None:
            given = self.builder_.emit(relax.op.permute_dims(given, turned.attrs.axes))
        return given, int(zero.value.numpy().reshape(()))

    def _call_of(self, value: relax.Expr, operator: str) -> relax.Call | None:
        found = self.lookup_binding(value) if isinstance(value, relax.Var) else value
        is_call = isinstance(found, relax.Call) and getattr(found.op, "name", "") == operator
        return found if is_call else None

    def _emit(
        self,
        call: relax.Call,
        data: relax.Expr,
        weights: np.ndarray,
        compute: Any,
        name: str,
        more: Sequence[np.ndarray] = (),
    ) -> relax.Expr:
        builder = self.builder_
        result = builder.call_te(
            compute,
            data,
            *(relax.const(each) for each in (weights, *more)),
            primfunc_name_hint=name,
            primfunc_attrs={"op_pattern": _OUT_ELEMENTWISE_FUSABLE},
        )
        if weights.shape[-1] == int(call.ty.shape[-1]):
            return result
        return without_padding(builder, result, call)

    def _without_zero(self, sums: relax.Expr, added: np.ndarray) -> relax.Expr:
        if not added.any():
            return sums
        constant = relax.const(np.ascontiguousarray(added.astype(np.int32)))
        return relax.op.subtract(self.builder_.emit(sums), constant)


def _weights_of(call: relax.Call) -> np.ndarray | None:
    """The constant weights of a product of bytes; None of any other product."""
    data, weights = call.args
    if not isinstance(weights, tvm.ir.expr.GenericConst) or str(call.ty.dtype) != _SUMS:
        return None
    if str(data.ty.dtype) not in (_DATA, _CENTRED) or str(weights.value.dtype) != _WEIGHTS:
        return None
    return weights.value.numpy()


def _depthwise(
    data: te.Tensor, weights: te.Tensor, window: Window, around: te.Tensor | None = None
) -> te.Tensor:
    batch, height, width, channels = (int(extent) for extent in data.shape)
    rows, columns, _ = (int(extent) for extent in weights.shape)
    top, left, bottom, right = window.padding
    wide = padded(data, [0, top, left, 0], [0, bottom, right, 0], around)
    r = te.reduce_axis((0, rows), name="r")
    s = te.reduce_axis((0, columns), name="s")

    def summed(n: Any, y: Any, x: Any, c: Any) -> Any:
        byte = wide[n, window.place(0, y, r), window.place(1, x, s), c]
        return te.sum(byte.astype(_SUMS) * weights[r, s, c], axis=[r, s])

    shape = (batch, window.size(0, height, rows), window.size(1, width, columns), channels)
    return te.compute(shape, summed, name="integer_depthwise_conv2d")
