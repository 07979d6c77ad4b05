"""The elementwise block after a reduction, which belongs under its loops."""

from __future__ import annotations

from typing import Any

import tvm_ffi

from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import tvm
from fewtune.schedule.blocks import CHOICE, Block, ScheduleError, describe, is_shared
from fewtune.schedule.tiling import vectorize_last


def tail_of(sch: tvm.s_tir.Schedule, block: Block) -> Block | None:
    """The one elementwise block that reads this reduction's result, at the same place."""
    consumers = list(sch.get_consumers(block.handle))
    if len(consumers) != 1:
        return None
    tail = describe(sch, consumers[0])
    if tail is None or tail.is_reduction or len(sch.get_producers(tail.handle)) != 1:
        return None
    return None if _has_border(sch, tail) else tail


def _has_border(sch: tvm.s_tir.Schedule, tail: Block) -> bool:
    """Whether some places read nothing, as a padding's: under loops over results they are lost."""
    found = False

    def seen(choice: Any) -> None:
        nonlocal found
        if getattr(choice.op, "name", "").endswith(CHOICE):
            found |= not _loads(choice.args[0])

    tvm_ffi.structural_walk(sch.get(tail.handle).body, [(tvm.ir.Call, seen)], order="post")
    return found


def _loads(value: Any) -> bool:
    loads: list[Any] = []
    tvm_ffi.structural_walk(value, [(tvm.ir.TensorLoad, loads.append)], order="post")
    return bool(loads)


def attach_tail(sch: tvm.s_tir.Schedule, block: Block, loop: Any, traits: CpuTraits | None) -> None:
    """Compute the block after a reduction under one of its loops, where it can be.

    Parameters
    ----------
    sch : Schedule
    block : Block
        The reduction.
    loop : LoopRV
    traits : CpuTraits or None
        For its vectors; None where each iteration of the loop has one result.
    """
    tail = tail_of(sch, block)
    if tail is None:
        return
    try:
        sch.reverse_compute_at(tail.handle, loop, preserve_unit_loops=False)
    except ScheduleError:
        return
    if traits is not None and not is_shared(sch, tail.handle):
        vectorize_last(sch, tail.handle, traits, tail.data_type)
