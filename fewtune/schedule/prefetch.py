"""Prefetches the next weights from memory while the present ones are used.

A kernel with a reduction reads a panel of weights (some columns of the matrix, over its whole
depth), uses it for one tile of rows after the other, and goes on to the next panel. Memory is idle
while a panel is reused, and the arithmetic waits for the next panel: the processor's own
prefetching follows past reads. So every step of a panel's reuse prefetches a part of the next
panel. That begins where this panel ends, since weights lie in the order in which the schedule reads
them (`fewtune.task.weight_layout`).

Prefetches are added when a kernel is compiled, by the shape of its loops. They are no decision of a
trace, so tuning records stay those of MetaSchedule. Candidates are measured with them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import tvm_ffi

from fewtune.runtime.tvm import has_feature, tvm
from fewtune.task.access import NotAffineError, evaluate, shape_of
from fewtune.task.weight_layout import free_places
from fewtune.util.switches import is_on

# A feature that every x86 CPU of 64 bits has, and no other.
_X86 = "sse2"
# TVM's own prefetch is LLVM's, which counts as reading any memory: no accumulator stays in a
# register across it. This one is declared to touch no memory, and the compiler must keep it.
_NEAR, _NEXT = "fewtune_prefetch_near", "fewtune_prefetch_next"
_IMPORT = "pragma_import_llvm"
_FUNCTIONS = (
    "".join(
        f"""
define linkonce_odr void @{name}(ptr %place) alwaysinline nounwind memory(none) {{
  call void asm sideeffect "{instruction} $0", "*m"(ptr elementtype(i8) %place) #0
  ret void
}}
"""
        for name, instruction in ((_NEAR, "prefetcht0"), (_NEXT, "prefetcht1"))
    )
    + "attributes #0 = { nounwind memory(none) }\n"
)
_FLOAT_BYTES, _LINE_BYTES = 4, 64
_LINE = _LINE_BYTES // _FLOAT_BYTES
# Sizes of a panel: a smaller one stays in registers, a larger one exceeds a core's cache.
_LEAST_BYTES, _MOST_BYTES = 1 << 10, 1 << 18
# The least distance of a prefetch: a small panel is used up before memory answers.
_AHEAD_BYTES = 1 << 13
# Up to this distance, weights are fetched into the nearest cache, beyond it into the next.
_NEAR_BYTES = 1 << 14
# Most products of one weight. Kernels with more products wait so little for memory that a prefetch
# costs more than it gains: ResNet 50's 1x1 convolutions on 14x14 planes (196 products) became a
# tenth slower, those on 7x7 planes (49 products) an eighth to a fifth faster.
_MOST_PRODUCTS = 64
# Cache lines that are prefetched together: more have to wait for each other.
_MOST_LINES = 16
_SERIAL = int(tvm.tirx.ForKind.SERIAL)
_REDUCTION = tvm.tirx.IterVar.CommReduce


class _Use(NamedTuple):
    """Where a block reads one element of a kernel's weights, and the loops around it."""

    weights: Any
    places: list[Any]
    realize: Any
    loops: list[Any]

    def offset(self, values: dict[Any, Any]) -> Any:
        """The element's place in memory, for values of the loops' variables."""
        axes = zip(self.realize.block.iter_vars, self.realize.iter_values, strict=True)
        bound = {axis.var: evaluate(value, values) for axis, value in axes}
        offset: Any = 0
        for place, extent in zip(self.places, shape_of(self.weights), strict=True):
            offset = offset * extent + evaluate(place, bound)
        return offset


class _Plan(NamedTuple):
    """The plan of prefetches: every iteration of the loops ``first`` to ``last`` fetches lines."""

    first: int
    last: int
    panel: int
    lines: int


def prefetched(module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """The same kernels, with prefetches of weights where a panel of them is reused.

    Parameters
    ----------
    module : IRModule
        Scheduled; weights, which ``layout_free_buffers`` names, laid out as they are read.
    target : Target
        Other than an x86 CPU, it leaves the kernels as they are.

    Returns
    -------
    module : IRModule
    """
    if not has_feature(target, _X86) or not is_on("prefetching"):
        return module
    functions = dict(module.functions_items())
    for variable, function in module.functions_items():
        if isinstance(function, tvm.tirx.PrimFunc) and free_places(function):
            functions[variable] = _prefetched(function)
    return tvm.IRModule(functions, attrs=module.attrs)


def _prefetched(function: tvm.tirx.PrimFunc) -> tvm.tirx.PrimFunc:
    """The function with its prefetches; as it is if nothing can be gained, or nothing is known."""
    for use in _uses(function):
        with suppress(NotAffineError):
            if (plan := _plan(use)) is not None:
                return function.with_body(_with_requests(function.body, use, plan))
    return function


def _with_requests(body: Any, use: _Use, plan: _Plan) -> Any:
    """A function's body, whose last loop of the plan begins with prefetches."""
    requests = _requests(use, plan)
    first, last = use.loops[0].loop_var, use.loops[plan.last].loop_var

    def changed(loop: Any) -> Any:
        inner, marks = loop.body, dict(loop.annotations or {})
        if loop.loop_var.same_as(last):
            inner = tvm.tirx.SeqStmt([*requests, inner])
        elif not loop.loop_var.same_as(first):
            return loop
        if loop.loop_var.same_as(first):
            marks[_IMPORT] = _FUNCTIONS
        own = loop.loop_var, loop.min, loop.extent, loop.kind
        return tvm.tirx.For(*own, inner, loop.thread_binding, marks)

    return tvm_ffi.structural_map(body, (tvm.tirx.For, changed), order="post")


def _uses(function: tvm.tirx.PrimFunc) -> Iterator[_Use]:
    """The blocks of a function that sum up products with weights."""
    places = free_places(function)
    free = [function.params[place] for place in places if place < len(function.params)]
    for realize, loops in _nests(function.body, []):
        block = realize.block
        if not any(axis.iter_type == _REDUCTION for axis in block.iter_vars):
            continue
        points = math.prod(int(axis.dom.extent) for axis in block.iter_vars)
        for region in block.reads:
            weights = region.source
            if str(weights.dtype) != "float32" or not any(weights.same_as(each) for each in free):
                continue
            if points <= _MOST_PRODUCTS * math.prod(shape_of(weights)):
                yield _Use(weights, [axis.min for axis in region.region], realize, loops)


def _nests(statement: Any, loops: list[Any]) -> Iterator[tuple[Any, list[Any]]]:
    """The blocks of a statement, and the loops around each, outermost first."""
    kind = type(statement).__name__
    if kind == "For":
        yield from _nests(statement.body, [*loops, statement])
    elif kind == "SeqStmt":
        for each in statement.seq:
            yield from _nests(each, loops)
    elif kind == "SBlockRealize":
        yield statement, loops
        yield from _nests(statement.block.body, loops)


def _plan(use: _Use) -> _Plan | None:
    """Which loop reuses a panel of weights, and where the next panel is prefetched.

    The first is the outermost loop whose panel fits into the caches. The second, within it, is the
    innermost loop with at most as many iterations as the panel has lines.
    """
    loops = use.loops
    extents = [int(loop.extent) for loop in loops]
    kinds = [int(loop.kind) for loop in loops]
    origin = {loop.loop_var: 0 for loop in loops}
    start = use.offset(origin)
    strides = [
        int(use.offset({**origin, loop.loop_var: 1}) - start) if extent > 1 else 0
        for loop, extent in zip(loops, extents, strict=True)
    ]
    found = _panel(extents, strides, kinds)
    if found is None:
        return None
    first, panel = found
    lines = panel // _LINE
    # Nothing is prefetched between the loops of a register tile.
    deepest = max(i for i, kind in enumerate(kinds) if strides[i] and kind == _SERIAL)
    last, visits = first, extents[first]
    for place in range(first + 1, deepest + 1):
        if kinds[place] != _SERIAL or visits * extents[place] > lines:
            break
        last, visits = place, visits * extents[place]
    at_once = math.ceil(lines / visits)
    fits = visits <= lines and at_once <= _MOST_LINES
    return _Plan(first, last, panel, at_once) if fits else None


def _panel(extents: list[int], strides: list[int], kinds: list[int]) -> tuple[int, int] | None:
    """The outermost loop that reuses a panel and is followed by another, and its elements."""
    chosen, pending, panel = None, None, 1
    for place in reversed(range(len(extents))):
        if strides[place] == 0:
            fits = _LEAST_BYTES <= panel * _FLOAT_BYTES <= _MOST_BYTES
            if extents[place] > 1 and kinds[place] == _SERIAL and fits:
                pending = (place, panel)
        elif strides[place] == panel:
            chosen = pending or chosen
            pending, panel = None, panel * extents[place]
        else:
            break
    return chosen


def _requests(use: _Use, plan: _Plan) -> list[Any]:
    """The prefetches of one iteration."""
    variables = [loop.loop_var for loop in use.loops]
    step: Any = 0
    for loop in use.loops[plan.first : plan.last + 1]:
        step = step * int(loop.extent) + loop.loop_var
    values = {each: each if n < plan.first else 0 for n, each in enumerate(variables)}
    panel_bytes = plan.panel * _FLOAT_BYTES
    ahead = plan.panel * math.ceil(_AHEAD_BYTES / panel_bytes)
    cache = _NEAR if ahead * _FLOAT_BYTES <= _NEAR_BYTES else _NEXT
    begin = use.offset(values) + ahead + step * (plan.lines * _LINE)
    leading = [0] * (len(use.places) - 1)
    # An address beyond the last weight is harmless: the instruction does nothing there.
    lines = (use.weights[(*leading, begin + line * _LINE)] for line in range(plan.lines))
    calls = (tvm.tirx.call_extern("void", cache, tvm.tirx.address_of(each)) for each in lines)
    return [tvm.tirx.Evaluate(call) for call in calls]
