"""Convolutions and products of uint8 activations with constant int8 weights, summed in int32.

A word of 32 bits holds four neighboring channels of bytes, which one instruction multiplies and
sums. Weights are packed into words when a model is compiled. Activations need no packing: their
neighboring channels are neighbors in memory. A convolution of words has the loops of any other
convolution, so the same rules tile it. Only its multiplication is an operator of `fewtune.runtime`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np

from fewtune.model.passes.padding import without_padding
from fewtune.model.passes.relax_calls import (
    ELEMENTWISE,
    FLOAT,
    OUT_ELEMENTWISE_FUSABLE,
    REDUCTION,
    call_of,
    extents_of,
    rewritten,
)
from fewtune.runtime import dot_products
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import relax, te, tvm
from fewtune.schedule.tiling import round_up
from fewtune.tvm_compat.values import array_of, is_constant, known_array

_CONVOLUTION, _PRODUCT = "relax.nn.conv2d", "relax.matmul"
_DATA, _WEIGHTS, _SUMS = "uint8", "int8", "int32"
# Activations minus their zero point.
_CENTERED = "int16"
# Bytes in a word.
WORD = 4

# Multiplies two words byte by byte, and sums the products.
Dot = Callable[[Any, Any], Any]


def integer_kernels(module: tvm.IRModule, traits: CpuTraits) -> tvm.IRModule:
    """Replace convolutions and products of bytes by calls of kernels.

    Activations are uint8, with a constant zero point or none; weights are constant int8. TVM
    legalizes all other convolutions and products.

    Parameters
    ----------
    module : IRModule
        Before its operators are legalized; convolutions in NHWC.
    traits : CpuTraits
    """
    return rewritten(module, _Kernels(module, traits))


@relax.expr_functor.mutator
class _Kernels(relax.PyExprMutator):
    def __init__(self, module: tvm.IRModule, traits: CpuTraits) -> None:
        super().__init__(module)
        self._dot = partial(dot_products.dot4, traits.dot)
        self._lanes = traits.lanes(_SUMS)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        name = getattr(call.op, "name", "")
        if name not in (_CONVOLUTION, _PRODUCT):
            return call
        weights, (data, zero) = _weights_of(call), self._bytes_of(call.args[0])
        if weights is None or data is None:
            return call
        made_by = self._convolution if name == _CONVOLUTION else self._product
        made = made_by(call, weights, data, zero)
        return call if made is None else made

    def _convolution(
        self, call: relax.Call, weights: np.ndarray, data: relax.Expr, zero: int
    ) -> relax.Expr | None:
        attributes = call.attrs
        if (str(attributes.data_layout), str(attributes.kernel_layout)) != ("NHWC", "HWIO"):
            return None
        groups, channels = int(attributes.groups), extents_of(data)[-1]
        window = Window(attributes)
        if groups == channels == weights.shape[-1]:
            given, name = weights[:, :, 0].astype(_SUMS), "integer_depthwise_conv2d"
            compute = partial(_convolved, None, window)
        elif groups > 1:
            return None
        else:
            given, name = packed(weights, self._lanes), "integer_conv2d"
            compute = partial(_convolved, self._dot, window)
        # As an argument, the value of the padding does not make the kernels of two layers differ.
        pads = [np.full(1, zero, _DATA)] if zero and any(window.padding) else []
        result = self._called(call, compute, [data, *map(relax.const, [given, *pads])], name)
        sums = weights.astype(np.int32).sum((0, 1, 2))
        return self._without_zero(result, sums.reshape(1, 1, 1, -1) * zero)

    def _product(
        self, call: relax.Call, weights: np.ndarray, data: relax.Expr, zero: int
    ) -> relax.Expr | None:
        if weights.ndim != 2 or len(extents_of(data)) < 2:
            return None
        compute = partial(multiplied, self._dot)
        given = relax.const(packed(weights, self._lanes))
        result = self._called(call, compute, [data, given], "integer_matmul")
        return self._without_zero(result, weights.astype(np.int32).sum(0) * zero)

    def _called(
        self, call: relax.Call, compute: Callable[..., te.Tensor], operands: list[Any], name: str
    ) -> relax.Expr:
        """Call a kernel in place of a convolution or product, without its padded filters."""
        result = self.builder_.call_te(
            compute,
            *operands,
            primfunc_name_hint=name,
            primfunc_attrs={"op_pattern": OUT_ELEMENTWISE_FUSABLE},
        )
        if extents_of(operands[1])[-1] == extents_of(call)[-1]:
            return result
        return without_padding(self.builder_, result, call)

    def _bytes_of(self, data: relax.Expr) -> tuple[relax.Expr | None, int]:
        """The unsigned bytes that a product reads, and their zero point."""
        if str(data.ty.dtype) == _DATA:
            return data, 0
        permuted = call_of(self, data, "relax.permute_dims")
        centered = permuted.args[0] if permuted is not None else data
        subtraction = call_of(self, centered, "relax.subtract")
        if subtraction is None:
            return None, 0
        cast = call_of(self, subtraction.args[0], "relax.astype")
        zero = array_of(subtraction.args[1])
        if cast is None or str(cast.args[0].ty.dtype) != _DATA or zero is None or zero.size != 1:
            return None, 0
        given = cast.args[0]
        if permuted is not None:
            given = self.builder_.emit(relax.op.permute_dims(given, permuted.attrs.axes))
        return given, int(zero.reshape(()))

    def _without_zero(self, sums: relax.Expr, added: np.ndarray) -> relax.Expr:
        """The sums minus what the zero point adds to them."""
        if not added.any():
            return sums
        constant = relax.const(np.ascontiguousarray(added.astype(np.int32)))
        return relax.op.subtract(self.builder_.emit(sums), constant)


def _weights_of(call: relax.Call) -> np.ndarray | None:
    """The constant weights of a product of bytes; None of any other product."""
    data, weights = call.args
    if not is_constant(weights) or str(weights.value.dtype) != _WEIGHTS:
        return None
    is_whole = str(data.ty.dtype) in (_DATA, _CENTERED) and str(call.ty.dtype) == _SUMS
    return array_of(weights) if is_whole else None


class Window:
    """Strides, dilations and padding of a ``relax.nn.conv2d``."""

    def __init__(self, attributes: Any) -> None:
        self.strides = [int(each) for each in attributes.strides]
        self.dilation = [int(each) for each in attributes.dilation]
        self.padding = [int(each) for each in attributes.padding]

    def size(self, axis: int, extent: int, taps: int) -> int:
        """Extent of the output along an axis, for an input extent and a kernel extent."""
        padded = extent + self.padding[axis] + self.padding[axis + 2]
        return (padded - (taps - 1) * self.dilation[axis] - 1) // self.strides[axis] + 1

    def place(self, axis: int, output: Any, tap: Any) -> Any:
        """Index into the padded input, for an output index and a kernel index."""
        return output * self.strides[axis] + tap * self.dilation[axis]

    def padded(self, data: te.Tensor, pad_value: te.Tensor | None, more: int = 0) -> te.Tensor:
        """The data with its padding, and with more channels."""
        top, left, bottom, right = self.padding
        return _padded(data, [0, top, left, 0], [0, bottom, right, more], pad_value)


def packed(weights: np.ndarray, lanes: int) -> np.ndarray:
    """Pack neighboring channels of weights into words, and pad their filters to whole vectors.

    From bytes of shape (..., channels, filters) to int32 of shape (..., words, padded filters).
    Added channels and filters are zero.
    """
    *others, channels, filters = weights.shape
    more = [(0, 0)] * len(others) + [(0, -channels % WORD), (0, -filters % lanes)]
    wide = np.pad(weights, more)
    grouped = wide.reshape(*others, -1, WORD, round_up(filters, lanes))
    return np.ascontiguousarray(np.moveaxis(grouped, -2, -1)).view(np.int32)[..., 0]


def _padded(
    data: te.Tensor, before: list[int], after: list[int], pad_value: te.Tensor | None = None
) -> te.Tensor:
    """The data with elements added to each axis: a value of shape (1,), or zeros."""
    if not any(before) and not any(after):
        return data
    value = tvm.tirx.const(0, str(data.dtype)) if pad_value is None else pad_value[0]
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
        return tvm.tirx.if_then_else(tvm.tirx.all(*inside), data(*moved), value)

    return te.compute(wide, at, name="padded_bytes")


def _convolved(
    dot: Dot | None,
    window: Window,
    data: te.Tensor,
    weights: te.Tensor,
    pad_value: te.Tensor | None = None,
) -> te.Tensor:
    """A convolution in NHWC with weights from `packed`: (rows, columns, words, filters).

    Without ``dot`` it is depthwise, with int32 weights: (rows, columns, channels).
    """
    batch, height, width, channels = (int(extent) for extent in data.shape)
    rows, columns, *depth, filters = (int(extent) for extent in weights.shape)
    r = te.reduce_axis((0, rows), name="r")
    s = te.reduce_axis((0, columns), name="s")
    words = [te.reduce_axis((0, count), name="k") for count in depth]
    wide = window.padded(data, pad_value, sum(depth) * WORD - channels if depth else 0)

    def summed(n: Any, y: Any, x: Any, f: Any) -> Any:
        place = [n, window.place(0, y, r), window.place(1, x, s)]
        if dot is None:
            return te.sum(wide(*place, f).astype(_SUMS) * weights[r, s, f], axis=[r, s])
        (k,) = words
        return te.sum(dot(word(wide, place, k * WORD), weights[r, s, k, f]), axis=[r, s, k])

    shape = (batch, window.size(0, height, rows), window.size(1, width, columns), filters)
    name = "integer_depthwise_conv2d" if dot is None else "integer_conv2d"
    return te.compute(shape, summed, name=name)


def multiplied(dot: Dot, data: te.Tensor, weights: te.Tensor) -> te.Tensor:
    """A product of bytes, shape (..., depth), with weights from `packed`: (words, columns)."""
    *others, depth = (int(extent) for extent in data.shape)
    count, columns = (int(extent) for extent in weights.shape)
    none = [0] * len(others)
    wide = _padded(data, [*none, 0], [*none, count * WORD - depth])
    k = te.reduce_axis((0, count), name="k")

    def summed(*place: Any) -> Any:
        *row, column = place
        return te.sum(dot(word(wide, row, k * WORD), weights[k, column]), axis=[k])

    return te.compute((*others, columns), summed, name="integer_matmul")


def word(data: Any, place: list[Any], first: Any) -> Any:
    """Neighbors along the last axis of bytes as an int32, which LLVM loads at once."""
    found = data[*place, first].astype("uint32")
    for number in range(1, WORD):
        part = data[*place, first + number].astype("uint32")
        found = found | part << tvm.tirx.const(8 * number, "uint32")
    return tvm.tirx.reinterpret("int32", found)


_ADD, _MULTIPLY, _MEAN, _CAST = "relax.add", "relax.multiply", "relax.mean", "relax.astype"
_BINARY = frozenset({_ADD, _MULTIPLY, "relax.subtract"})
# Operators between a cast from integers and the constants that scale its result.
_BETWEEN = _BINARY | {"relax.maximum", "relax.minimum", "relax.round", "relax.clip", _MEAN}
_BYTES = ("uint8", "int8")


def integer_epilogues(module: tvm.IRModule) -> tvm.IRModule:
    """Turn scalar constants of epilogues into arguments, and let sums and means read bytes.

    So layers of one shape are one task: TVM writes scalar constants into the kernel that multiplies
    by them, and each layer has its own scales. It fuses the cast of bytes to floats into the kernel
    that computes the bytes, which then writes four times as much, and differs from that of a layer
    whose bytes are read as bytes.

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
    total = tvm.topi.sum(tvm.topi.cast(given, FLOAT), axes, keeps)
    count = prod(map(int, given.shape)) / prod(map(int, total.shape))
    return tvm.topi.divide(total, tvm.tirx.const(count, FLOAT))
