"""Default schedules: good schedules without search, for kernels that are not worth tuning.

An unscheduled kernel runs serial and scalar. Here each kernel gets threads and vectors by rule: on
a CPU from the strides of its loops (`fewtune.task.access`), on a GPU from TVM's dlight.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from math import gcd, prod
from typing import Any

import tvm_ffi

from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.executable import IS_SCHEDULED, gpu_rules
from fewtune.runtime.tvm import ms, tvm
from fewtune.schedule.blocks import (
    Block,
    ScheduleError,
    blocks_of,
    condition_axes,
    describe,
    estimated_us,
    inline_injective,
    shares_inner_loop,
)
from fewtune.schedule.defaults.reduction import schedule_reduction, schedule_rows
from fewtune.schedule.tiling import (
    LEAST_PARALLEL_US,
    contiguous_axis,
    parallel_outer,
    split_off,
    vector_width,
    vectorize_inner,
)
from fewtune.task.analysis import INPUT, INPUT_ROWS, OUTPUT, OUTPUT_COLUMNS
from fewtune.task.weight_layout import FREE

# Elements of a cache line in fp32: tiles of this size use every byte of the lines that they load.
_TRANSPOSE_TILE = 16


def schedule_injective(sch: tvm.s_tir.Schedule, block: Block, traits: CpuTraits) -> bool:
    """Vectorise the contiguous axis and run the others in parallel.

    Returns
    -------
    changed : bool

    Raises
    ------
    ScheduleError
        If TVM refuses a step; the schedule is then incomplete.
    """
    parallel = estimated_us(sch, block.handle, block) >= LEAST_PARALLEL_US
    axis = contiguous_axis(block)
    loops = list(sch.get_loops(block.handle))
    if axis is None or axis != _last_axis(block):
        return parallel and _parallel_only(sch, block, loops, traits)
    across = _read_axis(block, axis)
    if across is not None:
        return _transpose(sch, block, loops, (across, axis), traits, parallel)
    chosen = condition_axes(sch, block.handle)
    first = max(_first_fusible(block, axis), *(min(i + 1, axis) for i in (-1, *chosen)))
    extent, run = 1, 0
    for position in range(first, axis + 1):
        extent *= block.extents[position]
    walks = [walk for walk in (*block.reads, *block.writes) if walk is not None]
    run = extent if first < axis else gcd(extent, *(w[axis].run for w in walks))
    inner = sch.fuse(*loops[first : axis + 1]) if first < axis else loops[axis]
    outer = [(loop, block.extents[i]) for i, loop in enumerate(loops[:first])]
    lanes = traits.lanes(block.data_type)
    # If a condition differs between the lanes of a vector, TVM makes a scalar loop of it. LLVM
    # evaluates the condition once for a loop of one register's length: concatenation of four
    # tensors reaches 55 GB/s so, and 28 with the whole loop.
    width = vector_width(run, lanes, 1 if axis in chosen else 4)
    if width == 1 and run < extent and axis not in chosen:
        # Short runs, as in a channel shuffle: gathers in full vectors are faster than scalar code.
        width = vector_width(extent, lanes, 1)
    if width == 1:
        if parallel:
            parallel_outer(sch, [*outer, (inner, extent)], traits, keep=1)
        return parallel
    if width < extent:
        rest, inner = split_off(sch, inner, extent, width)
        outer.append((rest, extent // width))
    vectorize_inner(sch, inner, width, lanes)
    if parallel and outer:
        parallel_outer(sch, outer, traits, keep=1 if width < extent else 0)
    return width > 1 or (parallel and bool(outer))


def _last_axis(block: Block) -> int:
    longer = [axis for axis, extent in enumerate(block.extents) if extent > 1]
    return longer[-1] if longer else 0


def _parallel_only(
    sch: tvm.s_tir.Schedule, block: Block, loops: list[Any], traits: CpuTraits
) -> bool:
    outer = [(loop, block.extents[i]) for i, loop in enumerate(loops)]
    parallel_outer(sch, outer, traits, keep=max(0, len(outer) - 1))
    return True


def _first_fusible(block: Block, axis: int) -> int:
    """The first axis such that it and those up to ``axis`` are contiguous in every tensor."""
    first = axis
    accesses = [*block.reads, *block.writes]
    walks = [walk for walk in accesses if walk is not None]
    if len(walks) < len(accesses):
        return first
    while first > 0:
        above, below = first - 1, first
        for walk in walks:
            long = walk[above].run == block.extents[above], walk[below].run == block.extents[below]
            if block.extents[above] == 1 or (block.extents[below] == 1 and above < axis - 1):
                continue
            if not all(long) or walk[above].stride != walk[below].stride * block.extents[below]:
                return first
        first = above
    return first


def _read_axis(block: Block, axis: int) -> int | None:
    """The axis along which a read is contiguous, if that is not the axis of the write."""
    for walk in block.reads:
        if walk is None or walk[axis].stride in (0, 1):
            continue
        for other in reversed(range(axis)):
            if walk[other].stride == 1 and walk[other].run >= 8:
                return other
    return None


def _transpose(
    sch: tvm.s_tir.Schedule,
    block: Block,
    loops: list[Any],
    axes: tuple[int, int],
    traits: CpuTraits,
    parallel: bool,
) -> bool:
    """Tile both axes, so that every byte of a cache line is used when it is read or written.

    Reads are contiguous along the first axis, writes along the second.
    """
    across, axis = axes
    rows = vector_width(block.extents[across], _TRANSPOSE_TILE, 2)
    columns = vector_width(block.extents[axis], _TRANSPOSE_TILE, 1)
    across_outer, across_inner = split_off(sch, loops[across], block.extents[across], rows)
    axis_outer, axis_inner = split_off(sch, loops[axis], block.extents[axis], columns)
    outer = []
    for position, loop in enumerate(loops):
        extent = block.extents[position]
        if position == across:
            outer.append((across_outer, extent // rows))
        elif position == axis:
            outer.append((axis_outer, extent // columns))
        else:
            outer.append((loop, extent))
    if columns >= _TRANSPOSE_TILE // 2:
        sch.reorder(*[loop for loop, _ in outer], across_inner, axis_inner)
        sch.vectorize(axis_inner)
    else:
        # Few columns, such as the three of an image: vectors along rows, with scattered stores.
        sch.reorder(*[loop for loop, _ in outer], axis_inner, across_inner)
        sch.unroll(axis_inner)
        sch.vectorize(across_inner)
    if parallel:
        parallel_outer(sch, outer, traits)
    return True


# Shorter vectors gain nothing over LLVM's own vectorisation.
_LEAST_LANES = 2


def schedule_winograd(sch: tvm.s_tir.Schedule, traits: CpuTraits) -> bool:
    """Schedule a transform of the input or the output.

    Returns
    -------
    changed : bool
        False if the kernel is neither; the schedule is then unchanged.
    """
    names = [sch.get(handle).name_hint for handle in blocks_of(sch)]
    if INPUT_ROWS in names and INPUT in names:
        return _input(sch, traits)
    if OUTPUT_COLUMNS in names and OUTPUT in names:
        return _output(sch, traits)
    return False


def _extents(sch: tvm.s_tir.Schedule, handle: Any) -> list[int]:
    return [int(sch.get(loop).extent) for loop in sch.get_loops(handle)]


def _vector(channels: int, traits: CpuTraits) -> int:
    """Channels of one step: a vector or a part of one that divides them; else all.

    With all 24 channels of a small output in one step, the unrolled loops took LLVM half a second.
    """
    part = gcd(channels, traits.lanes("float32"))
    return part if part >= _LEAST_LANES else channels


def _vectorize(sch: tvm.s_tir.Schedule, loop: Any, traits: CpuTraits) -> None:
    # LLVM vectorises loops of other lengths, with a scalar remainder.
    extent = int(sch.get(loop).extent)
    if extent >= _LEAST_LANES and traits.lanes("float32") % extent == 0:
        sch.vectorize(loop)


def _input(sch: tvm.s_tir.Schedule, traits: CpuTraits) -> bool:
    first, second = sch.get_sblock(INPUT_ROWS), sch.get_sblock(INPUT)
    places, channels = _extents(sch, first)[2], _extents(sch, first)[-1]
    lanes = _vector(channels, traits)
    place, tile, channel = sch.get_loops(second)
    above, beside = sch.split(place, [places, places])
    vectors, lane = sch.split(channel, [channels // lanes, lanes])
    sch.reorder(tile, vectors, above, beside, lane)
    # Each tile computes the two columns that it shares with the next one. That is faster than
    # keeping a row of tiles (1.2 ms instead of 3.3 for 224 x 224 x 64).
    sch.compute_at(first, vectors, preserve_unit_loops=True)
    sch.parallel(tile)
    sch.unroll(beside)
    _vectorize(sch, lane, traits)
    *_, own_place, own_column, own_lane = sch.get_loops(first)
    sch.reorder(own_column, own_place, own_lane)
    sch.unroll(own_column)
    sch.unroll(own_place)
    _vectorize(sch, own_lane, traits)
    return True


def _output(sch: tvm.s_tir.Schedule, traits: CpuTraits) -> bool:
    first, second = sch.get_sblock(OUTPUT_COLUMNS), sch.get_sblock(OUTPUT)
    batch, rows, columns, places, m, filters = _extents(sch, first)
    lanes = _vector(filters, traits)
    _inline_tail(sch, second)
    b, y, x, n = sch.get_loops(second)
    row, below = sch.split(y, [None, m])
    column, beside = sch.split(x, [None, m])
    vectors, lane = sch.split(n, [filters // lanes, lanes])
    sch.reorder(b, row, column, vectors, below, beside, lane)
    outer = [b, row, column]
    if prod([batch, rows, columns]) < 4 * traits.threads:
        outer.append(vectors)
    thread = sch.fuse(*outer)
    sch.compute_at(first, vectors if len(outer) == 3 else thread, preserve_unit_loops=True)
    sch.parallel(thread)
    sch.unroll(below)
    sch.unroll(beside)
    _vectorize(sch, lane, traits)
    *_, own_place, own_beside, own_lane = sch.get_loops(first)
    sch.unroll(own_place)
    sch.unroll(own_beside)
    _vectorize(sch, own_lane, traits)
    return True


def _inline_tail(sch: tvm.s_tir.Schedule, block: Any) -> None:
    """Inline the blocks after the transform into it: bias, residual, activation.

    Raises
    ------
    ScheduleError
        If a block cannot be inlined.
    """
    for handle in blocks_of(sch):
        name = sch.get(handle).name_hint
        # A leaky activation reads its argument twice, so blocks are first inlined into consumers.
        if name not in (OUTPUT, OUTPUT_COLUMNS) and sch.get_consumers(handle):
            sch.compute_inline(handle)
    for handle in sch.get_consumers(block):
        sch.reverse_compute_inline(handle)


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
