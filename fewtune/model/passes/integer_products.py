"""Convolutions and products of bytes: unsigned activations, signed constant weights, int32 sums.

Four channels are one word of 32 bits. Weights are packed into words here, once; an activation's
word is four neighbouring bytes as they lie. In words a convolution is one like any other, with the
operator of `fewtune.runtime.dot_products` for its multiplication: the same loops and rules tile it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fewtune.model.passes.pad_filters import without_padding
from fewtune.model.passes.winograd import filled
from fewtune.runtime import dot_products
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import has_feature, relax, te, tvm

CONVOLUTION, PRODUCT = "relax.nn.conv2d", "relax.matmul"
_DATA, _WEIGHTS, _SUMS = "uint8", "int8", "int32"
# Bytes less their zero point.
_CENTRED = "int16"
_BYTES = 4
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
        self._form, self._lanes = form, lanes

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
        window = _Window(attributes, zero)
        compute: Callable[..., te.Tensor]
        if groups == 1:
            packed, compute, name = _packed(weights, self._lanes), _convolved, "integer_conv2d"
        elif groups == channels == weights.shape[-1]:
            packed, compute = weights[:, :, 0].astype(_SUMS), _depthwise
            name = "integer_depthwise_conv2d"
        else:
            return None

        def computed(given: te.Tensor, words: te.Tensor, *around: te.Tensor) -> te.Tensor:
            return compute(self._form, given, words, window, *around)

        result = self._emit(call, data, packed, computed, name, window.around)
        sums = weights.astype(np.int32).sum((0, 1, 2)) if groups == 1 else packed.sum((0, 1))
        return self._without_zero(result, sums.reshape(1, 1, 1, -1) * zero)

    def _product(self, call: relax.Call) -> relax.Expr | None:
        weights = _weights_of(call)
        data, zero = self._bytes_of(call.args[0])
        if weights is None or data is None or weights.ndim != 2 or len(data.ty.shape) < 2:  # noqa: PLR2004
            return None
        packed = _packed(weights, self._lanes)
        result = self._emit(
            call,
            data,
            packed,
            lambda given, words: _multiplied(self._form, given, words),
            "integer_matmul",
        )
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


class _Window:
    """Strides, dilations and padding of a convolution, and what it is padded with."""

    def __init__(self, attributes: Any, zero: int) -> None:
        self.zero = zero
        self.strides = [int(each) for each in attributes.strides]
        self.dilation = [int(each) for each in attributes.dilation]
        self.padding = [int(each) for each in attributes.padding]

    @property
    def around(self) -> list[np.ndarray]:
        """What is around the data, as an argument: layers of one shape are then one kernel."""
        return [np.full(1, self.zero, _DATA)] if self.zero and any(self.padding) else []

    def size(self, axis: int, extent: int, taps: int) -> int:
        """Places of the output along an axis."""
        padded = extent + self.padding[axis] + self.padding[axis + 2]
        return (padded - (taps - 1) * self.dilation[axis] - 1) // self.strides[axis] + 1

    def place(self, axis: int, output: Any, tap: Any) -> Any:
        """Where an output's tap reads the padded input."""
        return output * self.strides[axis] + tap * self.dilation[axis]


def _weights_of(call: relax.Call) -> np.ndarray | None:
    """The constant weights of a product of bytes; None of any other product."""
    data, weights = call.args
    if not isinstance(weights, tvm.ir.expr.GenericConst) or str(call.ty.dtype) != _SUMS:
        return None
    if str(data.ty.dtype) not in (_DATA, _CENTRED) or str(weights.value.dtype) != _WEIGHTS:
        return None
    return weights.value.numpy()


def _packed(weights: np.ndarray, lanes: int) -> np.ndarray:
    """Four channels a word, and as many filters as fill vectors.

    Parameters
    ----------
    weights : numpy.ndarray
        int8, shape (..., channels, filters).
    lanes : int

    Returns
    -------
    words : numpy.ndarray
        int32, shape (..., words, filters); what is added is zero.
    """
    *others, channels, filters = weights.shape
    more = [(0, 0)] * len(others) + [(0, -channels % _BYTES), (0, -filters % lanes)]
    wide = np.pad(weights, more)
    grouped = wide.reshape(*others, -1, _BYTES, filled(filters, lanes))
    return np.ascontiguousarray(np.moveaxis(grouped, -2, -1)).view(np.int32)[..., 0]


def _padded(
    data: te.Tensor, before: list[int], after: list[int], around: te.Tensor | None = None
) -> te.Tensor:
    """The data with zero points around, or with zeros."""
    if not any(before) and not any(after):
        return data
    shape = [int(extent) for extent in data.shape]
    wide = [first + extent + last for first, extent, last in zip(before, shape, after, strict=True)]

    def at(*place: Any) -> Any:
        inside = []
        for where, first, extent, whole in zip(place, before, shape, wide, strict=True):
            if first:
                inside.append(where >= first)
            if first + extent < whole:
                inside.append(where < first + extent)
        moved = [where - first for where, first in zip(place, before, strict=True)]
        zero = tvm.tirx.const(0, _DATA) if around is None else around[0]
        return tvm.tirx.if_then_else(tvm.tirx.all(*inside), data(*moved), zero)

    return te.compute(wide, at, name="padded_bytes")


def _word(data: te.Tensor, place: list[Any], word: Any) -> Any:
    """Four neighbouring bytes of the last axis as an int32: LLVM makes one load of them."""
    found = None
    for number in range(_BYTES):
        byte = data(*place, word * _BYTES + number).astype("uint32")
        shifted = byte if number == 0 else byte << tvm.tirx.const(8 * number, "uint32")
        found = shifted if found is None else found | shifted
    return tvm.tirx.reinterpret(_SUMS, found)


def _convolved(
    form: str,
    data: te.Tensor,
    weights: te.Tensor,
    window: _Window,
    around: te.Tensor | None = None,
) -> te.Tensor:
    batch, height, width, channels = (int(extent) for extent in data.shape)
    rows, columns, words, filters = (int(extent) for extent in weights.shape)
    top, left, bottom, right = window.padding
    more = words * _BYTES - channels
    padded = _padded(data, [0, top, left, 0], [0, bottom, right, more], around)
    r = te.reduce_axis((0, rows), name="r")
    s = te.reduce_axis((0, columns), name="s")
    k = te.reduce_axis((0, words), name="k")

    def summed(n: Any, y: Any, x: Any, f: Any) -> Any:
        place = [n, window.place(0, y, r), window.place(1, x, s)]
        return te.sum(
            dot_products.dot4(form, _word(padded, place, k), weights[r, s, k, f]), axis=[r, s, k]
        )

    shape = (batch, window.size(0, height, rows), window.size(1, width, columns), filters)
    return te.compute(shape, summed, name="integer_conv2d")


def _depthwise(
    _form: str,
    data: te.Tensor,
    weights: te.Tensor,
    window: _Window,
    around: te.Tensor | None = None,
) -> te.Tensor:
    batch, height, width, channels = (int(extent) for extent in data.shape)
    rows, columns, _ = (int(extent) for extent in weights.shape)
    top, left, bottom, right = window.padding
    padded = _padded(data, [0, top, left, 0], [0, bottom, right, 0], around)
    r = te.reduce_axis((0, rows), name="r")
    s = te.reduce_axis((0, columns), name="s")

    def summed(n: Any, y: Any, x: Any, c: Any) -> Any:
        byte = padded[n, window.place(0, y, r), window.place(1, x, s), c]
        return te.sum(byte.astype(_SUMS) * weights[r, s, c], axis=[r, s])

    shape = (batch, window.size(0, height, rows), window.size(1, width, columns), channels)
    return te.compute(shape, summed, name="integer_depthwise_conv2d")


def _multiplied(form: str, data: te.Tensor, weights: te.Tensor) -> te.Tensor:
    *others, depth = (int(extent) for extent in data.shape)
    words, filters = (int(extent) for extent in weights.shape)
    none = [0] * len(others)
    padded = _padded(data, [*none, 0], [*none, words * _BYTES - depth])
    k = te.reduce_axis((0, words), name="k")

    def summed(*place: Any) -> Any:
        *row, column = place
        return te.sum(dot_products.dot4(form, _word(padded, row, k), weights[k, column]), axis=[k])

    return te.compute((*others, filters), summed, name="integer_matmul")
