"""Keeps what kernels read and write by indices within its tensor, whatever the indices are.

onnxruntime refuses an index beyond its table while it runs. TVM's kernels do not look, and would
read or write foreign memory. Here such an index becomes the nearest valid one: two comparisons for
each index, in the kernel that reads by it or in the one that counts indices from the end. Constant
indices are right already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fewtune.model.passes.relax_calls import Legalizer, extents_of
from fewtune.runtime.tvm import relax, te, tvm
from fewtune.tvm_compat.values import is_constant

_TAKE, _SCATTER, _REGIONS = "relax.take", "relax.scatter_elements", "relax.vision.roi_align"
_ALONG_AXIS = ("relax.gather_elements", _SCATTER)
_GRID = "relax.image.grid_sample"
_BY_TUPLES = ("relax.gather_nd", "relax.scatter_nd")
_OUTSIDE = 10_000
# An element of a call's second argument, by its place.
Bounded = Callable[[relax.Call, te.Tensor, tuple[Any, ...]], Any]


def legalizers() -> dict[str, Legalizer]:
    """Legalizers by operator, for `relax.transform.LegalizeOps`."""
    return dict.fromkeys((_TAKE, *_ALONG_AXIS, *_BY_TUPLES, *_OTHERS), _legalized)


def _legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    usual = call.op.get_attr("FLegalize")
    if call.op.name == _TAKE:
        # TVM's own kernel can; its fast one also warns on standard error.
        mode = "clip" if call.attrs.mode == "fast" else call.attrs.mode
        return builder.call_te(tvm.topi.take, *call.args, axis=call.attrs.axis, mode=mode)
    if is_constant(call.args[1]):
        return usual(builder, call)

    def nearest(indices: te.Tensor) -> te.Tensor:
        bounded = _OTHERS.get(call.op.name, _index)
        return te.compute(indices.shape, lambda *place: bounded(call, indices, place))

    indices = builder.emit_te(nearest, call.args[1])
    arguments = [call.args[0], indices, *call.args[2:]]
    return usual(builder, relax.Call(call.op, arguments, call.attrs, call.ty_args))


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


def _region(call: relax.Call, regions: te.Tensor, place: tuple[Any, ...]) -> Any:
    """The number of an image, or a corner of a region in it, which may be NaN."""
    image = _clip(regions, place, 0, extents_of(call.args[0])[0] - 1)
    corner, zero = regions(*place), tvm.tirx.const(0, regions.dtype)
    number = tvm.tirx.Select(tvm.tirx.isnan(corner), zero, corner)
    return tvm.tirx.Select(place[1] == 0, image, number)


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


_OTHERS: dict[str, Bounded] = {_REGIONS: _region, _GRID: _coordinate}
