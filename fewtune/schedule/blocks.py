"""Describes blocks for default schedules, and inlines the cheap ones."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

from fewtune.runtime.tvm import tvm
from fewtune.task.access import NotAffineError, Walk, bytes_of, evaluate, nodes_of, walks
from fewtune.task.weight_layout import free_places

Schedule: TypeAlias = tvm.s_tir.Schedule
ScheduleError = tvm.s_tir.ScheduleError
# Loops of a schedule, with their extents.
Loops = list[tuple[Any, int]]

_realize = tvm.get_global_func("s_tir.schedule.GetSBlockRealize")
_IF_THEN_ELSE = "if_then_else"
# Calls that compile to an instruction or two.
_INSTRUCTIONS = (
    *("tirx.bitwise_", "tirx.shift_", "tirx.reinterpret", "tirx.nearbyint"),
    *("tirx.dot4_", "tirx.dot2_"),
)
_KINDS = {tvm.tirx.IterVar.DataPar: "S", tvm.tirx.IterVar.CommReduce: "R"}


@dataclass(frozen=True)
class Block:
    """A block whose axes are bound one to one to its loops.

    Attributes
    ----------
    handle : tvm.s_tir.schedule.SBlockRV
    kinds : str
        A letter for each axis: S for spatial, R for reduction.
    extents : list of int
    reads, writes : list of (list of Walk, or None)
        For every region, the walk of each axis; None if its indices are not affine.
    data_type : str
        Of the result.
    weights_bytes : list of int
        For every region that is read, the size of its tensor if that is a weight, else 0.
    """

    handle: Any
    kinds: str
    extents: list[int]
    reads: list[list[Walk] | None]
    writes: list[list[Walk] | None]
    data_type: str
    weights_bytes: list[int]

    @property
    def long_axes(self) -> list[int]:
        """The spatial axes of more than one iteration."""
        kinds = zip(self.kinds, self.extents, strict=True)
        return [axis for axis, (kind, extent) in enumerate(kinds) if kind == "S" and extent > 1]

    @property
    def known_reads(self) -> list[list[Walk]]:
        """The reads with affine indices."""
        return [walk for walk in self.reads if walk is not None]

    def spatial(self, loops: list[Any]) -> Loops:
        """Of its loops those of spatial axes, with their extents."""
        every = zip(loops, self.kinds, self.extents, strict=True)
        return [(loop, extent) for loop, kind, extent in every if kind == "S"]

    @property
    def is_reduction(self) -> bool:
        return "R" in self.kinds

    @property
    def reduction_extent(self) -> int:
        return prod(e for e, k in zip(self.extents, self.kinds, strict=True) if k == "R")

    @property
    def spatial_extent(self) -> int:
        return prod(e for e, k in zip(self.extents, self.kinds, strict=True) if k == "S")


def describe(sch: Schedule, handle: Any) -> Block | None:
    """Describe a block; None unless each axis is one loop, and is spatial or reduced."""
    statement = sch.get(handle)
    loops = [sch.get(loop) for loop in sch.get_loops(handle)]
    values = list(_realize(sch, handle).iter_values)
    axes = list(statement.iter_vars)
    if len(loops) != len(axes) or not axes or not statement.writes:
        return None
    if not all(loop.loop_var.same_as(value) for loop, value in zip(loops, values, strict=True)):
        return None
    kinds = "".join(_KINDS.get(axis.iter_type, "O") for axis in axes)
    if "O" in kinds:
        return None
    try:
        extents = [int(evaluate(axis.dom.extent, {})) for axis in axes]
    except NotAffineError:
        return None
    variables = [axis.var for axis in axes]
    sources = [region.source for region in statement.reads]
    weights = _weights(sch)
    return Block(
        handle,
        kinds,
        extents,
        [walks(region, variables, extents) for region in statement.reads],
        [walks(region, variables, extents) for region in statement.writes],
        str(statement.writes[0].source.dtype),
        [bytes_of(each) if any(map(each.same_as, weights)) else 0 for each in sources],
    )


def _weights(sch: Schedule) -> list[Any]:
    """The arguments that are weights."""
    functions = {variable.name_hint: each for variable, each in sch.mod.functions_items()}
    main = functions.get("main")
    return [] if main is None else [main.params[place] for place in free_places(main)]


def blocks_of(sch: Schedule) -> list[Any]:
    """Handles of the blocks directly under the root, in order of execution."""
    return list(sch.get_child_blocks(sch.get_sblock("root")))


def shares_inner_loop(sch: Schedule, handle: Any) -> bool:
    """Whether the innermost loop of a block contains another block.

    Such a loop is not vectorised. If the other block is an ArgMax, results are wrong (TVM 0.27); if
    it is another reduction, vectors gain nothing.
    """
    loops = sch.get_loops(handle)
    return bool(loops) and len(sch.get_child_blocks(loops[-1])) > 1


def inline_injective(sch: Schedule) -> None:
    """Inline every cheap elementwise block into its consumers.

    A reduction reads its inputs many times, so only plain copies are inlined there. A block that
    calls a function, such as an exponential, is inlined only if it has one consumer.
    """
    for handle in blocks_of(sch):
        if reduces(sch, handle):
            continue
        block = sch.get(handle)
        consumers = list(sch.get_consumers(handle))
        if any(reduces(sch, consumer) for consumer in consumers):
            is_cheap = _is_copy(block)
        else:
            is_cheap = len(consumers) == 1 or not _calls(block)
        if consumers and is_cheap:
            with suppress(ScheduleError):
                sch.compute_inline(handle)


def condition_axes(sch: Schedule, handle: Any) -> set[int]:
    """Axes on which the conditions of a block depend, such as those of a padding or concatenation.

    If a condition differs from lane to lane, TVM makes scalar code of a vector.
    """
    block = sch.get(handle)
    positions = {axis.var: position for position, axis in enumerate(block.iter_vars)}
    variables = (
        variable
        for condition in conditions_of(block)
        for variable in nodes_of(condition, tvm.ir.Var)
    )
    return {positions[variable] for variable in variables if variable in positions}


def conditions_of(block: Any) -> list[Any]:
    """The conditions that decide which values a block uses."""
    calls = nodes_of(block.body, tvm.ir.Call)
    return [call.args[0] for call in calls if _name(call).endswith(_IF_THEN_ELSE)]


def _name(call: Any) -> str:
    return str(getattr(call.op, "name", ""))


def estimated_us(sch: Schedule, block: Block) -> float:
    """Estimated time of a block on one core, in microseconds."""
    statement = sch.get(block.handle)
    size = 0
    for region in [*statement.reads, *statement.writes]:
        with suppress(NotAffineError):
            size += bytes_of(region.source)
    operations = prod(block.extents)
    # Ordinary code reaches 10 GB/s and 8 operations a nanosecond on one core. Functions are
    # polynomials of tens of operations (`fewtune.runtime.vector_math`).
    call_ns = 0.4 if _calls(statement) else 0.0
    return size / 1e4 + operations / 8e3 + operations * call_ns / 1e3


def reduces(sch: Schedule, handle: Any) -> bool:
    """Whether a block has an axis that is not spatial."""
    return any(_KINDS.get(axis.iter_type) != "S" for axis in sch.get(handle).iter_vars)


def _is_copy(block: Any) -> bool:
    """Whether a block only copies an element."""
    value = getattr(block.body, "value", None)
    return type(value).__name__ in ("TensorLoad", "BufferLoad")


def _calls(block: Any) -> bool:
    """Whether a block calls a function that takes more than an instruction or two."""
    names = map(_name, nodes_of(block.body, tvm.ir.Call))
    return any(
        not name.endswith(_IF_THEN_ELSE) and not name.startswith(_INSTRUCTIONS) for name in names
    )
