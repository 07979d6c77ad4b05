"""ScatterND as a kernel that writes whole rows by vectors.

TVM's kernel (0.27) goes through the rows one by one, and starts its threads anew for each. Here a
thread has some columns of all rows. So no two threads write one element, and the rows of one index
are added in their order.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T  # noqa: N812 (TVM's own name for it)

from fewtune.model.passes.relax_calls import OPAQUE, Legalizer
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import relax, te, tvm
from fewtune.schedule.tiling import vector_width

OPERATOR = "relax.scatter_nd"
_MOST_VECTORS = 4
_COMBINED: dict[str, Callable[[Any, Any], Any]] = {
    "update": lambda _, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": tvm.tirx.min,
    "max": tvm.tirx.max,
}


def of_rows(traits: CpuTraits) -> Legalizer:
    """A legalizer of `OPERATOR`, whose indices count from the front."""

    def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        return builder.call_te(
            _scatter,
            *call.args,
            reduction=str(call.attrs.reduction),
            lanes=traits.lanes(str(call.args[0].ty.dtype)),
            primfunc_name_hint="scatter_nd",
            primfunc_attrs={"op_pattern": OPAQUE},
        )

    return legalized


def _scatter(
    data: te.Tensor, indices: te.Tensor, updates: te.Tensor, reduction: str, lanes: int
) -> te.Tensor:
    """The data, combined with updates at the rows that tuples of indices name."""
    shape, (*tuples, depth) = ([int(e) for e in each.shape] for each in (data, indices))
    named, columns = shape[:depth], prod(shape[depth:])
    width = vector_width(columns, lanes, _MOST_VECTORS)
    combined = _COMBINED[reduction]

    def kernel(ins: list[Any], outs: list[Any]) -> Any:
        old, index, new, result = map(T.buffer_proxy, [*ins, *outs])
        with IRBuilder() as builder:
            with T.parallel(0, columns // width) as block:
                with T.serial(0, prod(named)) as row, T.vectorized(0, width) as lane:
                    place = row * columns + block * width + lane
                    result[place] = old[place]
                with T.serial(0, prod(tuples)) as number:
                    row = 0
                    for axis, extent in enumerate(named):
                        row = row * extent + index[number * depth + axis]
                    with T.vectorized(0, width) as lane:
                        column = block * width + lane
                        place = row * columns + column
                        added = new[number * columns + column]
                        result[place] = combined(result[place], added)
            return builder.get()

    return te.extern(
        [data.shape],
        [data, indices, updates],
        kernel,
        dtype=data.dtype,
        out_buffers=[tvm.tirx.decl_buffer(data.shape, data.dtype, "scattered", layout=None)],
        name="scatter_nd",
        tag="scatter_nd",
    )
