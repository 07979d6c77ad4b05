"""Convolutions and products of uint8 activations with constant int8 weights, summed in int32.

Four channels are one word of 32 bits (`fewtune.model.passes.packed_products`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from fewtune.model.passes.packed_products import (
    Window,
    Words,
    call_packed,
    convolved,
    merged,
    multiplied,
    packed,
    padded,
)
from fewtune.model.passes.relax_calls import call_of
from fewtune.runtime import dot_products
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import has_feature, relax, te, tvm

_CONVOLUTION, _PRODUCT = "relax.nn.conv2d", "relax.matmul"
_DATA, _WEIGHTS, _SUMS = "uint8", "int8", "int32"
# Activations minus their zero point.
_CENTRED = "int16"


def integer_kernels(
    module: tvm.IRModule, target: tvm.target.Target, traits: CpuTraits
) -> tvm.IRModule:
    """Replace convolutions and products of bytes by calls of kernels.

    Parameters
    ----------
    module : IRModule
        Before its operators are legalised; convolutions in NHWC.
    target : Target
        Of a CPU. Its features decide the instruction that multiplies four bytes.
    traits : CpuTraits

    Returns
    -------
    module : IRModule
        Activations are uint8, with a constant zero point or none; weights are constant int8. TVM
        legalises all other convolutions and products.
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
        if name == _CONVOLUTION:
            made = self._convolution(call)
        elif name == _PRODUCT:
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

        def computed(data: te.Tensor, weights: te.Tensor, *pad_value: te.Tensor) -> te.Tensor:
            return compute(data, weights, pad_value=pad_value[0] if pad_value else None)

        constants = [given, *window.pad_values(_DATA)]
        result = call_packed(self.builder_, call, computed, data, constants, name)
        sums = weights.astype(np.int32).sum((0, 1, 2))
        return self._without_zero(result, sums.reshape(1, 1, 1, -1) * zero)

    def _product(self, call: relax.Call) -> relax.Expr | None:
        weights = _weights_of(call)
        data, zero = self._bytes_of(call.args[0])
        if weights is None or data is None or weights.ndim != 2 or len(data.ty.shape) < 2:
            return None
        compute = partial(multiplied, self._words)
        given = packed(weights, self._lanes)
        result = call_packed(self.builder_, call, compute, data, [given], "integer_matmul")
        return self._without_zero(result, weights.astype(np.int32).sum(0) * zero)

    def _bytes_of(self, data: relax.Expr) -> tuple[relax.Expr | None, int]:
        """The unsigned bytes that a product reads, and their zero point."""
        if str(data.ty.dtype) == _DATA:
            return data, 0
        permuted = call_of(self, data, "relax.permute_dims")
        centred = permuted.args[0] if permuted is not None else data
        subtraction = call_of(self, centred, "relax.subtract")
        if subtraction is None:
            return None, 0
        cast = call_of(self, subtraction.args[0], "relax.astype")
        if cast is None or str(cast.args[0].ty.dtype) != _DATA:
            return None, 0
        zero = subtraction.args[1]
        if not isinstance(zero, tvm.ir.expr.GenericConst) or zero.value.numpy().size != 1:
            return None, 0
        given = cast.args[0]
        if permuted is not None:
            given = self.builder_.emit(relax.op.permute_dims(given, permuted.attrs.axes))
        return given, int(zero.value.numpy().reshape(()))

    def _without_zero(self, sums: relax.Expr, added: np.ndarray) -> relax.Expr:
        """The sums minus what the zero point adds to them."""
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
    data: te.Tensor, weights: te.Tensor, window: Window, pad_value: te.Tensor | None = None
) -> te.Tensor:
    batch, height, width, channels = (int(extent) for extent in data.shape)
    rows, columns, _ = (int(extent) for extent in weights.shape)
    top, left, bottom, right = window.padding
    wide = padded(data, [0, top, left, 0], [0, bottom, right, 0], pad_value)
    r = te.reduce_axis((0, rows), name="r")
    s = te.reduce_axis((0, columns), name="s")

    def summed(n: Any, y: Any, x: Any, c: Any) -> Any:
        byte = wide[n, window.place(0, y, r), window.place(1, x, s), c]
        return te.sum(byte.astype(_SUMS) * weights[r, s, c], axis=[r, s])

    shape = (batch, window.size(0, height, rows), window.size(1, width, columns), channels)
    return te.compute(shape, summed, name="integer_depthwise_conv2d")
