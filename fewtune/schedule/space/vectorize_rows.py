"""Vectors for rows that MetaSchedule leaves scalar.

MetaSchedule vectorises the innermost loop of a block if it has no more iterations than
``max_vectorize_extent``, 64 on a CPU. A longer row of an epilogue, or of a buffer that is written
back, stays scalar and is unrolled. LLVM then looks for vectors in hundreds of scalar statements,
and compares each of their accesses with every other. A quarter of the best candidates for ResNet 50
had such rows. These took 0.33 s each to compile with scalar rows, 0.15 s with vectors, and run as
fast (a Xeon).

The rows are vectorised after MetaSchedule's own postprocessors, by instructions of the trace. So a
tuning record contains them, and a search space's decisions do not change.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import tvm
from fewtune.schedule.tiling import vectorize_inner

_UNROLL = "pragma_auto_unroll_max_step"
_SPATIAL = tvm.tirx.IterVar.DataPar


class _Row(NamedTuple):
    """A block that runs along scalar rows: its name, and the extents of its own serial loops."""

    name: str
    extents: list[int]


def vectorize_long_rows(sch: tvm.s_tir.Schedule, traits: CpuTraits) -> None:
    """Vectorise the long contiguous rows of a scheduled kernel that are still scalar.

    Parameters
    ----------
    sch : Schedule
        After MetaSchedule's postprocessors; its trace grows.
    traits : CpuTraits
    """
    found: list[_Row] = []
    _look(sch.mod["main"].body, [], traits, found)
    lanes = traits.lanes("float32")
    for name, extents in found:
        own = list(sch.get_loops(sch.get_sblock(name)))[-len(extents) :]
        vectors = vectorize_inner(sch, own[-1], extents[-1], lanes, unroll=False)
        # Unrolling more vectors than there are registers gains nothing.
        if prod(extents) // lanes > traits.registers:
            sch.annotate([*own[:-1], *vectors][0], _UNROLL, 0)


def _look(statement: Any, own: list[Any], traits: CpuTraits, found: list[_Row]) -> None:
    """Find rows; ``own`` are the serial loops that contain nothing but the statement."""
    kind = type(statement).__name__
    if kind == "For":
        is_serial = int(statement.kind) == int(tvm.tirx.ForKind.SERIAL)
        _look(statement.body, [*own, statement] if is_serial else [], traits, found)
    elif kind == "SeqStmt":
        for each in statement.seq:
            _look(each, [], traits, found)
    elif kind == "SBlockRealize":
        block = statement.block
        if type(block.body).__name__ != "BufferStore":
            _look(block.body, [], traits, found)
        elif own and _is_scalar_row(statement, own[-1], traits.lanes("float32")):
            found.append(_Row(str(block.name_hint), [int(loop.extent) for loop in own]))


def _is_scalar_row(realize: Any, loop: Any, lanes: int) -> bool:
    """Whether a loop moves a block along contiguous float32 elements, in whole vectors."""
    block, extent = realize.block, int(loop.extent)
    axes = list(block.iter_vars)
    if extent <= lanes or extent % lanes or any(axis.iter_type != _SPATIAL for axis in axes):
        return False
    regions = [*block.reads, *block.writes]
    if any(str(region.source.dtype) != "float32" for region in regions):
        return False
    # The loop steps along the innermost axis, and no other axis depends on it.
    if not _steps(realize.iter_values[-1], loop.loop_var):
        return False
    return all(_is_along(region, axes[-1].var) for region in regions)


def _steps(value: Any, variable: Any) -> bool:
    """Whether an index is a variable, or something and that variable."""
    return value.same_as(variable) or (type(value).__name__ == "Add" and value.b.same_as(variable))


def _is_along(region: Any, variable: Any) -> bool:
    """Whether a region lies along a variable, its last index, or stays where it is."""
    places = [axis.min for axis in region.region]
    if not all(type(place).__name__ in ("Var", "IntImm") for place in places):
        return False
    return not any(place.same_as(variable) for place in places[:-1])
