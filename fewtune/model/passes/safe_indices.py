"""Keeps what kernels read and write by indices within its tensor, whatever the indices are.

onnxruntime refuses an index beyond its table while it runs. TVM's kernels do not look, and would
read or write foreign memory. Here such an index becomes the nearest valid one: two comparisons for
each index, in the kernel that counts indices from the end. Constant indices are right already.
"""

from __future__ import annotations

from typing import Any

from fewtune.model.passes.relax_calls import Legalizer, extents_of
from fewtune.runtime.tvm import relax, te, tvm
from fewtune.tvm_compat.values import is_constant

_TAKE, _SCATTER, _REGIONS = "relax.take", "relax.scatter_elements", "relax.vision.roi_align"
_ALONG_AXIS = (_TAKE, "relax.gather_elements", _SCATTER)
_BY_TUPLES = ("relax.gather_nd", "relax.scatter_nd")


def legalizers() -> dict[str, Legalizer]:
    """Legalizers by operator, for `relax.transform.LegalizeOps`."""
    return dict.fromkeys((*_ALONG_AXIS, *_BY_TUPLES, _REGIONS), _legalized)


def _legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    usual = call.op.get_attr("FLegalize")
    if is_constant(call.args[1]):
        return usual(builder, call)

    def nearest(indices: te.Tensor) -> te.Tensor:
        bounded = _region if call.op.name == _REGIONS else _index
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


def _clip(tensor: te.Tensor, place: tuple[Any, ...], lowest: int, highest: int) -> Any:
    least, most = (tvm.tirx.const(each, tensor.dtype) for each in (lowest, highest))
    return te.max(te.min(tensor(*place), most), least)
