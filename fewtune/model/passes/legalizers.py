"""How operators are legalized otherwise than by TVM.

**Indices** stay within their tensor. onnxruntime refuses an index beyond its table while it runs.
TVM's kernels do not look, and would read or write foreign memory. Here such an index becomes the
nearest valid one: two comparisons for each index, in the kernel that reads by it or in the one that
counts indices from the end. Constant indices are right already.

**Sums and means**: in NHWC a channel's elements are far apart, so each channel is one sum of all of
them. Such a sum of 14,400 elements loses digits: the gate of a text detector was off by 1.7e-4 of
itself. A mean of the means of rows adds up as few numbers as a row has. It is faster, too, since
rows are summed side by side. With the convolution before them, 96 channels of 60x60 took 0.29 ms
and take 0.07, 480 of 14x14 0.113 and 0.047, 2048 of 7x7 0.150 and 0.097 (an EPYC, two threads, in
turns).

**Softmax**: its rows may fill no vectors, such as those of the 197 tokens of a vision transformer.
TVM does not vectorize a loop of 197: the maximum and the sum of a row are scalar chains. Here a row
is copied to a buffer of 208 in the cache. The padding is the lowest number for the maximum, and
zero for the sum. A kernel of 591 rows of 197 took 0.05 instead of 0.09 ms; 591 rows of 208 take
0.04 ms (an EPYC, two threads).

**Equal calls** are legalized once: TVM writes each kernel in Python, a quarter of an import's time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from math import prod
from typing import Any

import tvm_ffi

from fewtune.model.passes.relax_calls import FLOAT, Legalizer, extents_of
from fewtune.runtime.tvm import relax, te, tvm
from fewtune.schedule.tiling import round_up, vector_width
from fewtune.tvm_compat.values import is_constant

_TAKE, _SCATTER = "relax.take", "relax.scatter_elements"
_ALONG_AXIS = ("relax.gather_elements", _SCATTER)
_GRID = "relax.image.grid_sample"
_BY_TUPLES = ("relax.gather_nd", "relax.scatter_nd")
_OUTSIDE = 10_000


def within(
    builder: relax.BlockBuilder, call: relax.Call, kernel: Legalizer | None = None
) -> relax.Expr:
    """A call whose indices are within their tensor, by TVM's kernel or by another one."""
    usual = kernel or call.op.get_attr("FLegalize")
    if call.op.name == _TAKE:
        # TVM's own kernel can; its fast one also warns on standard error.
        mode = "clip" if call.attrs.mode == "fast" else call.attrs.mode
        return builder.call_te(tvm.topi.take, *call.args, axis=call.attrs.axis, mode=mode)
    if is_constant(call.args[1]):
        return usual(builder, call)

    def nearest(indices: te.Tensor) -> te.Tensor:
        bounded = _coordinate if call.op.name == _GRID else _index
        return te.compute(indices.shape, lambda *place: bounded(call, indices, place))

    indices = builder.emit_te(nearest, call.args[1])
    arguments = [call.args[0], indices, *call.args[2:]]
    return usual(builder, relax.Call(call.op, arguments, call.attrs, call.ty_args))


# By operator, for `relax.transform.LegalizeOps`.
SAFE_INDICES: dict[str, Legalizer] = dict.fromkeys(
    (_TAKE, *_ALONG_AXIS, *_BY_TUPLES, _GRID), within
)


def _index(call: relax.Call, indices: te.Tensor, place: tuple[Any, ...]) -> Any:
    """An index, or one of a tuple, no larger than its axis allows."""
    shape, name = extents_of(call.args[0]), call.op.name
    if name in _BY_TUPLES:
        first = int(getattr(call.attrs, "batch_dims", 0))
        extents = shape[first : first + int(indices.shape[-1])]
    else:
        extents = [shape[int(call.attrs.axis)]]
    # Of these kernels one takes indices from the end; before the others the importer adds to them.
    found = [_clip(indices, place, -e if name == _SCATTER else 0, e - 1) for e in extents]
    chosen = found[0]
    for number, each in enumerate(found[1:], 1):
        chosen = tvm.tirx.Select(place[-1] == number, each, chosen)
    return chosen


def _coordinate(call: relax.Call, grid: te.Tensor, place: tuple[Any, ...]) -> Any:
    """A coordinate in units of the image.

    One that is no number that an integer can hold is -1, as in onnxruntime. Further outside than
    `_OUTSIDE` the padding is the same, and a cube of the distance may be infinite.
    """
    value, edge = grid(*place), tvm.tirx.const(-1, grid.dtype)
    holds = te.abs(value) < tvm.tirx.const(2.0**60, grid.dtype)
    if str(call.attrs.padding_mode) != "reflection":
        value = _clip(grid, place, -_OUTSIDE, _OUTSIDE)
    return tvm.tirx.Select(holds, value, edge)


def _clip(tensor: te.Tensor, place: tuple[Any, ...], lowest: int, highest: int) -> Any:
    least, most = (tvm.tirx.const(each, tensor.dtype) for each in (lowest, highest))
    return te.max(te.min(tensor(*place), most), least)


SUMS = ("relax.mean", "relax.sum")
# From so many elements on, a second kernel pays: 96 channels of 14x14 gain 0.003 ms, 64 of 7x7 lose
# 0.0003.
_LEAST_ELEMENTS = 2**14


def long_sum(name: str, fallback: Legalizer) -> Legalizer:
    """A legalizer of a sum or mean.

    ``fallback`` legalizes one sum. It is used for small planes, for a single axis, and if the last
    axis is summed: those sums are computed in the lanes of vectors.
    """
    operator = getattr(relax.op, name.removeprefix("relax."))

    def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        axes = _split_axes(call)
        if not axes:
            return fallback(builder, call)
        given = call.args[0]
        for axis in reversed(axes[1:]):
            part = builder.normalize(operator(given, [axis], keepdims=True))
            given = builder.emit(fallback(builder, part))
        whole = builder.normalize(operator(given, call.attrs.axis, call.attrs.keepdims))
        return fallback(builder, whole)

    return legalized


def _split_axes(call: relax.Call) -> list[int]:
    """The axes that are summed one after the other; empty if all are summed at once."""
    extents = extents_of(call.args[0])
    rank = len(extents)
    summed = range(rank) if call.attrs.axis is None else [int(a) % rank for a in call.attrs.axis]
    axes = [axis for axis in sorted(summed) if extents[axis] > 1]
    is_large = prod(extents) >= _LEAST_ELEMENTS
    # A mean of integers is cut off, and would be twice.
    is_split = is_large and "float" in str(call.ty.dtype) and rank - 1 not in summed
    return axes if len(axes) > 1 and is_split else []


def padded_softmax(lanes: int, fallback: Legalizer) -> Legalizer:
    """A legalizer of softmax over rows that fill no vectors.

    Rows are float32, along the last axis, longer than a vector, and not divisible by half a vector.
    ``fallback`` legalizes every other softmax.
    """

    def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        shape = extents_of(call)
        is_last = int(call.attrs.axis) % len(shape) == len(shape) - 1
        # As it is, a row is vectorized, or too short to gain by vectors.
        is_fine = shape[-1] <= lanes or vector_width(shape[-1], lanes, 1) >= lanes // 2
        if str(call.ty.dtype) != FLOAT or not is_last or is_fine:
            return fallback(builder, call)
        return builder.call_te(_softmax, call.args[0], lanes, primfunc_name_hint="softmax")

    return legalized


def _softmax(data: te.Tensor, lanes: int) -> te.Tensor:
    """Softmax over the last axis, computed on rows padded to whole vectors."""
    *rows, extent = data.shape
    padded = (*rows, round_up(int(extent), lanes))
    low = tvm.tirx.min_value(FLOAT)

    def over_row(fold: Callable[..., tvm.tirx.PrimExpr], row: te.Tensor, name: str) -> te.Tensor:
        place = te.reduce_axis((0, padded[-1]), name=f"{name}_place")
        return te.compute(rows, lambda *at: fold(row(*at, place), axis=place), name=name)

    row = te.compute(
        padded,
        lambda *at: tvm.tirx.if_then_else(at[-1] < extent, data(*at), low),
        name="softmax_padded",
    )
    largest = over_row(te.max, row, "softmax_largest")

    def power(*at: tvm.tirx.PrimExpr) -> tvm.tirx.PrimExpr:
        # The index decides, not the value: a masked row may hold nothing but the lowest number.
        powered = tvm.tirx.exp(row(*at) - largest(*at[:-1]))
        return tvm.tirx.Select(at[-1] < extent, powered, tvm.tirx.const(0, FLOAT))

    powers = te.compute(padded, power, name="softmax_powers")
    total = over_row(te.sum, powers, "softmax_sum")
    return te.compute(data.shape, lambda *at: powers(*at) / total(*at[:-1]), name="softmax")


def once(usual: Legalizer) -> Legalizer:
    """One of TVM's own legalizers, which remembers the kernels that it has made."""
    made: dict[Hashable, relax.Call] = {}

    def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        key = _key(call)
        if key is None:
            return usual(builder, call)
        if key not in made:
            kernel = usual(builder, call)
            if not _takes_all(kernel, call):
                return kernel
            made[key] = kernel
        kernel = made[key]
        given = relax.Tuple(list(call.args))
        return relax.Call(kernel.op, [kernel.args[0], given], kernel.attrs, kernel.ty_args)

    return legalized


def _key(call: relax.Call) -> Hashable:
    """The call without its arguments; None if a kernel may be of more than their types."""
    kinds = []
    for each in call.args:
        kind = each.ty
        # A number is written into the kernel.
        is_tensor = isinstance(each, relax.Var) or is_constant(each)
        if not is_tensor or not getattr(kind, "ndim", 0) > 0:
            return None
        kinds.append(str(kind))
    attributes = 0 if call.attrs is None else tvm_ffi.structural_hash(call.attrs)
    return (*kinds, str(call.ty), attributes)


def _takes_all(kernel: Any, call: relax.Call) -> bool:
    """Whether a legalized call is of one kernel that takes the arguments as they are."""
    is_call = isinstance(kernel, relax.Call) and getattr(kernel.op, "name", "") == "relax.call_tir"
    if not is_call or len(kernel.args) > len(("kernel", "arguments")):
        return False
    given = kernel.args[1].fields
    return len(given) == len(call.args) and all(
        one.same_as(other) for one, other in zip(given, call.args, strict=True)
    )
