"""Softmax over rows that fill no vectors, such as the 197 tokens of a vision transformer.

TVM parts no loop of 197 into vectors: largest number and sum of a row would be found one by one,
each waiting for the last. Padded in the cache by what no maximum takes, and no sum, a row is one of
208. Alone, 591 rows of 197 took 0.05 instead of 0.09 ms, and 591 of 208 take
0.04 (an EPYC, two threads).
"""

from __future__ import annotations

from collections.abc import Callable

from fewtune.model.passes.pad_filters import Legalizer
from fewtune.model.passes.winograd import TYPE, filled
from fewtune.runtime.tvm import relax, te, tvm
from fewtune.schedule.tiling import vector_width

_SOFTMAX = "relax.nn.softmax"


def padded_softmax(lanes: int) -> dict[str, Legalizer]:
    """What `relax.transform.LegalizeOps` needs to know.

    Parameters
    ----------
    lanes : int
        Elements of a vector register.

    Returns
    -------
    legalizers : dict of callable
        By operator; TVM's own serves every other softmax than one of float32 over the last axis,
        no part of which fills half a vector.
    """
    usual = tvm.ir.Op.get(_SOFTMAX).get_attr("FLegalize")

    def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        shape = [int(extent) for extent in call.ty.shape]
        is_last = int(call.attrs.axis) % len(shape) == len(shape) - 1
        if str(call.ty.dtype) != TYPE or not is_last or not _is_awkward(shape[-1], lanes):
            return usual(builder, call)
        return builder.call_te(_softmax, call.args[0], lanes, primfunc_name_hint="softmax")

    return {_SOFTMAX: legalized}


def _is_awkward(extent: int, lanes: int) -> bool:
    return extent > lanes and vector_width(extent, lanes, 1) < lanes // 2


def _softmax(data: te.Tensor, lanes: int) -> te.Tensor:
    """Softmax over the last axis, by way of rows of whole vectors."""
    *rows, extent = data.shape
    padded = (*rows, filled(int(extent), lanes))
    low = tvm.tirx.min_value(TYPE)

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
        # Not by the padding itself: a row that is masked as a whole has numbers as low.
        powered = tvm.tirx.exp(row(*at) - largest(*at[:-1]))
        return tvm.tirx.Select(at[-1] < extent, powered, tvm.tirx.const(0, TYPE))

    powers = te.compute(padded, power, name="softmax_powers")
    total = over_row(te.sum, powers, "softmax_sum")
    return te.compute(data.shape, lambda *at: powers(*at) / total(*at[:-1]), name="softmax")
