"""Padding of bytes that convolutions read as words of four: where it can be computed."""

from __future__ import annotations

from typing import Any

import tvm_ffi

from fewtune.runtime.tvm import tvm
from fewtune.schedule.blocks import blocks_of, condition_axes

_PRODUCTS = ("tirx.dot4_",)


def pads_words(module: tvm.IRModule) -> bool:
    """Whether a product of words reads padding that is slow to compute inside it.

    Such padding has a zero point that is read from memory, or fills up the channels. Inside the
    product, four bytes are then chosen one by one for each word, again for every filter.
    """
    schedule = tvm.s_tir.Schedule(module)
    return any(
        _is_slow_inside(schedule, handle)
        and any(_multiplies_words(schedule.get(each)) for each in schedule.get_consumers(handle))
        for handle in blocks_of(schedule)
    )


def _is_slow_inside(schedule: tvm.s_tir.Schedule, handle: Any) -> bool:
    block = schedule.get(handle)
    conditions = condition_axes(schedule, handle)
    return bool(conditions) and (len(block.reads) > 1 or len(block.iter_vars) - 1 in conditions)


def _multiplies_words(block: Any) -> bool:
    found = []

    def visit(call: Any) -> None:
        found.append(getattr(call.op, "name", "").startswith(_PRODUCTS))

    tvm_ffi.structural_walk(block.body, [(tvm.ir.Call, visit)], order="post")
    return any(found)
