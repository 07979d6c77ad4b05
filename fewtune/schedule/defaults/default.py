"""Default schedules: good schedules without search, for kernels that are not worth tuning.

An unscheduled kernel runs serial and scalar. Here each kernel gets threads and vectors by rule: on
a CPU from the strides of its loops (`fewtune.schedule.access`), on a GPU from TVM's dlight.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import tvm_ffi

from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.executable import IS_SCHEDULED, gpu_rules
from fewtune.runtime.tvm import ms, tvm
from fewtune.schedule.blocks import (
    ScheduleError,
    blocks_of,
    describe,
    inline_injective,
    shares_inner_loop,
)
from fewtune.schedule.defaults.injective import schedule_injective
from fewtune.schedule.defaults.reduction import schedule_reduction
from fewtune.schedule.defaults.row_reductions import schedule_rows
from fewtune.schedule.defaults.winograd import schedule_winograd
from fewtune.task.weight_layout import FREE

_LOG = logging.getLogger(__name__)


def default_schedule(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.s_tir.Schedule | None:
    """Schedule one kernel by rule.

    On a CPU, the outer loop is parallel, the inner loop is vectorised, and the epilogue is fused.
    On a GPU, the first rule of dlight that applies decides.

    Parameters
    ----------
    mod : tvm.IRModule
        One unscheduled TensorIR function named ``main``.
    target : tvm.target.Target
        For a CPU, ``num-cores`` and the vector extensions of ``mcpu`` decide the tiles.

    Returns
    -------
    schedule : tvm.s_tir.Schedule or None
        Its trace holds every step, so it can be stored as a tuning record. None if no rule applies,
        as to a very small kernel; a rule that raises does not apply.
    """
    if "gpu" in list(target.keys):
        return _by_dlight(mod, target)
    traits = CpuTraits.of(target)
    for attempt in (_by_kind, _inlined, _block_by_block, _outermost):
        try:
            sch = tvm.s_tir.Schedule(mod, debug_mask="none", error_render_level="none")
            if attempt(sch, traits):
                return _laid_out(sch)
        except Exception as fault:  # noqa: BLE001 (a default must not stop a compilation)
            _LOG.debug("%s: %s", attempt.__name__, fault)
    return None


def _laid_out(sch: tvm.s_tir.Schedule) -> tvm.s_tir.Schedule:
    """The schedule with its weights in the order of its loops, as in MetaSchedule's candidates.

    In the model's layout, a register tile reads a few cache lines of each row of weights and skips
    the rest. By default schedules, SSD512's products took 206 ms so, and 159 ms with weights in the
    order of the loops (an EPYC).
    """
    if FREE not in (sch.mod["main"].attrs or {}):
        return sch
    laid_out = sch.copy()
    laid_out.enter_postproc()
    try:
        return laid_out if ms.postproc.RewriteLayout().apply(laid_out) else sch
    except Exception as fault:  # noqa: BLE001 (as above)
        _LOG.debug("weights stay as they are: %s", fault)
        return sch


def apply_default_schedules(
    mod: tvm.IRModule,
    names: Iterable[str],
    target: tvm.target.Target,
    known: dict[int, tvm.tirx.PrimFunc | None] | None = None,
) -> tvm.IRModule:
    """Schedule some kernels of a lowered model by rule.

    Parameters
    ----------
    mod : tvm.IRModule
        The whole lowered model; it is not changed.
    names : Iterable[str]
        Names of kernels; scheduled ones, and those that are not TensorIR functions, are skipped.
    target : tvm.target.Target
    known : dict, optional
        Scheduled kernels by structural hash, from another version of the same model. New ones are
        added.

    Returns
    -------
    mod : tvm.IRModule
        The model with those kernels replaced and marked ``tirx.is_scheduled``.
    """
    made = {} if known is None else known

    def schedule_one(function: tvm.tirx.PrimFunc) -> tvm.tirx.PrimFunc | None:
        key = tvm_ffi.structural_hash(function.with_attr("global_symbol", "main"))
        if key not in made:
            made[key] = _scheduled(function, target)
        scheduled = made[key]
        symbol = (function.attrs or {}).get("global_symbol")
        if scheduled is None or symbol is None:
            return scheduled
        return scheduled.with_attr("global_symbol", symbol)

    return _replace(mod, names, schedule_one)


def _replace(
    mod: tvm.IRModule,
    names: Iterable[str],
    schedule_one: Callable[[tvm.tirx.PrimFunc], tvm.tirx.PrimFunc | None],
) -> tvm.IRModule:
    chosen = set(names)
    functions = {}
    for variable, function in mod.functions_items():
        functions[variable] = function
        if variable.name_hint not in chosen or not isinstance(function, tvm.tirx.PrimFunc):
            continue
        if function.attrs and function.attrs.get(IS_SCHEDULED):
            continue
        scheduled = schedule_one(function)
        if scheduled is not None:
            functions[variable] = scheduled
    return tvm.IRModule(functions, attrs=mod.attrs)


def _scheduled(function: tvm.tirx.PrimFunc, target: tvm.target.Target) -> tvm.tirx.PrimFunc | None:
    sch = default_schedule(tvm.IRModule({"main": function}), target)
    if sch is None:
        return None
    scheduled = sch.mod["main"]
    return tvm.tirx.PrimFunc(
        scheduled.params, scheduled.body, scheduled.ret_type, function.attrs
    ).with_attr(IS_SCHEDULED, True)


def _by_dlight(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.s_tir.Schedule | None:
    for rule in gpu_rules():
        try:
            with target:
                made = rule.apply(mod["main"], target, False)
        except Exception as fault:  # noqa: BLE001 (dlight refuses in many ways: next rule)
            _LOG.debug("%s: %s", type(rule).__name__, fault)
            continue
        made = made[0] if isinstance(made, list) else made
        if made is not None:
            return made
    return None


def _by_kind(sch: tvm.s_tir.Schedule, traits: CpuTraits) -> bool:
    """A schedule for the whole kernel: a transform, a reduction with epilogue, or shared rows."""
    if schedule_winograd(sch, traits):
        return True
    inline_injective(sch)
    blocks = [describe(sch, handle) for handle in blocks_of(sch)]
    reductions = [block for block in blocks if block is not None and block.is_reduction]
    if len(reductions) > 1 and schedule_rows(sch, traits):
        return True
    return _each(sch, traits)


def _inlined(sch: tvm.s_tir.Schedule, traits: CpuTraits) -> bool:
    """Inline, then schedule each block; for blocks with shared rows that TVM cannot match."""
    inline_injective(sch)
    return _each(sch, traits)


def _block_by_block(sch: tvm.s_tir.Schedule, traits: CpuTraits) -> bool:
    """Schedule each block without inlining, and skip blocks that TVM refuses to schedule."""
    return _each(sch, traits, forgiving=True)


def _each(sch: tvm.s_tir.Schedule, traits: CpuTraits, forgiving: bool = False) -> bool:
    changed = False
    for handle in blocks_of(sch):
        try:
            block = describe(sch, handle)
            if block is None or any(_is_scheduled(sch, loop) for loop in sch.get_loops(handle)):
                continue
            if not block.is_reduction and shares_inner_loop(sch, handle):
                continue
            plan = schedule_reduction if block.is_reduction else schedule_injective
            changed = plan(sch, block, traits) or changed
        except ScheduleError:
            if not forgiving:
                raise
    return changed


def _is_scheduled(sch: tvm.s_tir.Schedule, loop: tvm.s_tir.schedule.LoopRV) -> bool:
    return int(sch.get(loop).kind) != int(tvm.tirx.ForKind.SERIAL)


def _outermost(sch: tvm.s_tir.Schedule, traits: CpuTraits) -> bool:
    """The last resort: the first long loop of each block runs in parallel, if TVM allows it."""
    changed = False
    for handle in blocks_of(sch):
        for loop in sch.get_loops(handle):
            if int(getattr(sch.get(loop).extent, "value", 0)) < traits.threads:
                continue
            try:
                sch.parallel(loop)
                changed = True
            except ScheduleError:
                pass
            break
    return changed
