"""Fuses the elementwise block after a reduction into its loops."""

from __future__ import annotations

from typing import Any

import tvm_ffi

from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import tvm
from fewtune.schedule.blocks import IF_THEN_ELSE, Block, ScheduleError, describe, shares_inner_loop
from fewtune.schedule.tiling import vectorize_last


def tail_of(sch: tvm.s_tir.Schedule, block: Block) -> Block | None:
    """The elementwise block after a reduction.

    None unless it is the reduction's only consumer, and the reduction its only producer.
    """
    consumers = list(sch.get_consumers(block.handle))
    if len(consumers) != 1:
        return None
    tail = describe(sch, consumers[0])
    if tail is None or tail.is_reduction or len(sch.get_producers(tail.handle)) != 1:
        return None
    return None if _has_border(sch, tail) else tail


def _has_border(sch: tvm.s_tir.Schedule, tail: Block) -> bool:
    """Whether an index decides if the block reads anything, as in a padding.

    Loops over the reduction's results would leave out the elements that read nothing.
    """
    found = False

    def visit(call: Any) -> None:
        nonlocal found
        if getattr(call.op, "name", "").endswith(IF_THEN_ELSE):
            found |= not _loads(call.args[0])

    tvm_ffi.structural_walk(sch.get(tail.handle).body, [(tvm.ir.Call, visit)], order="post")
    return found


def _loads(value: Any) -> bool:
    """Whether an expression reads a tensor."""
    loads: list[Any] = []
    tvm_ffi.structural_walk(value, [(tvm.ir.TensorLoad, loads.append)], order="post")
    return bool(loads)


def attach_tail(sch: tvm.s_tir.Schedule, block: Block, loop: Any, traits: CpuTraits | None) -> None:
    """Compute the block after a reduction at one of its loops, if possible, and vectorise it.

    Parameters
    ----------
    sch : Schedule
    block : Block
        The reduction.
    loop : LoopRV
    traits : CpuTraits or None
        None if each iteration of the loop has one result: there is nothing to vectorise.
    """
    tail = tail_of(sch, block)
    if tail is None:
        return
    try:
        sch.reverse_compute_at(tail.handle, loop, preserve_unit_loops=False)
    except ScheduleError:
        return
    if traits is not None and not shares_inner_loop(sch, tail.handle):
        vectorize_last(sch, tail.handle, traits, tail.data_type)
