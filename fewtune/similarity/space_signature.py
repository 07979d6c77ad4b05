"""The design spaces of a task, reduced to what can be compared.

A design space is a trace, a straight-line schedule program whose sampling instructions hold the
decisions that the search varies (Shao et al., Tensor Program Optimization with Probabilistic
Programs, NeurIPS 2022). Two tasks can trade schedules where their traces sample the same kinds of
decision in the same places.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fewtune.errors import last_line
from fewtune.runtime.tvm import register_intrinsics, tvm
from fewtune.schedule import tiling
from fewtune.schedule.space.search_space import generated

# These say which blocks the program handles and which elementwise tails it folds away. They differ
# between a convolution with a bias and one with a bias and a residual, whose tiles are alike.
_BOOKKEEPING = frozenset(
    {
        "GetSBlock",
        "GetBlock",
        "GetLoops",
        "GetConsumers",
        "GetProducers",
        "GetChildBlocks",
        "GetChildSBlocks",
        "ComputeInline",
        "ReverseComputeInline",
    }
)
_TILING = "meta_schedule.tiling_structure"


@dataclass(frozen=True)
class TileSampling:
    """Split a loop of ``extent`` iterations into ``parts`` factors whose product it is.

    The factors that can occur are the divisors of the extent; the innermost one is at most
    ``max_innermost``, so that it still unrolls or vectorises.
    """

    extent: int
    parts: int
    max_innermost: int


@dataclass(frozen=True)
class CategoricalSampling:
    """Choose one of ``candidates``, such as the depth to unroll to."""

    candidates: frozenset[int]


@dataclass(frozen=True)
class LocationSampling:
    """Choose the loop to compute a block at.

    The loops on offer are known only while scheduling. They follow from the loops that the form
    has made so far, so this is one and the same choice wherever the form is.
    """


Sampling = TileSampling | CategoricalSampling | LocationSampling


@dataclass(frozen=True)
class SpaceTrace:
    """One design space: its program's form, and what is sampled in it, in order."""

    form: tuple[str, ...]
    samplings: tuple[Sampling, ...]


@dataclass(frozen=True)
class DesignSpace:
    """All that is searched for one task: one or more traces, in the generator's order.

    Attributes
    ----------
    traces : tuple of SpaceTrace
    fault : str
        Why MetaSchedule made none, if it raised.
    """

    traces: tuple[SpaceTrace, ...]
    fault: str = ""

    @property
    def has_samplings(self) -> bool:
        """Whether there is anything to search at all."""
        return any(trace.samplings for trace in self.traces)


def design_space(mod: tvm.IRModule, target: tvm.target.Target) -> DesignSpace:
    """Let MetaSchedule generate the design spaces of a task.

    Parameters
    ----------
    mod : tvm.IRModule
        The task's module, with one kernel named ``main``.
    target : tvm.target.Target
        What the schedule rules are for.

    Returns
    -------
    space : DesignSpace
        The same for equal modules and targets; without a trace where MetaSchedule raises.
    """
    register_intrinsics(target)
    try:
        _, spaces = generated(mod, target)
    except Exception as fault:  # noqa: BLE001 (the default schedule remains)
        return DesignSpace((), last_line(fault))
    return DesignSpace(tuple(_reduce(schedule.trace) for schedule in spaces))


@lru_cache(maxsize=4096)
def divisors(extent: int) -> frozenset[int]:
    """All divisors of a positive number."""
    return frozenset(tiling.divisors(extent))


def _reduce(trace: Any) -> SpaceTrace:
    form: list[str] = []
    samplings: list[Sampling] = []
    for instruction in trace.insts:
        kind = str(instruction.kind.name)
        # What follows makes the program run on the target and samples nothing.
        if kind == "EnterPostproc":
            break
        if kind in _BOOKKEEPING:
            continue
        step = kind
        if kind == "Annotate":
            key = str(instruction.attrs[0])
            step = f"{kind} {key}"
            if key == _TILING:
                step = f"{step} {instruction.inputs[1]}"
        elif kind == "SamplePerfectTile":
            parts, max_innermost = (int(value) for value in instruction.attrs)
            # The trace knows the loop by a variable; its first decision multiplies to the extent.
            extent = math.prod(int(factor) for factor in trace.decisions[instruction])
            samplings.append(TileSampling(extent, parts, max_innermost))
            step = f"{kind} {parts}"
        elif kind == "SampleCategorical":
            candidates = frozenset(int(value) for value in instruction.attrs[0])
            samplings.append(CategoricalSampling(candidates))
        elif kind == "SampleComputeLocation":
            samplings.append(LocationSampling())
        elif kind.startswith("Sample"):
            # The domain of this kind is not known: traces are comparable if its text is equal.
            step = f"{kind} {[str(value) for value in instruction.attrs]}"
        form.append(step)
    return SpaceTrace(tuple(form), tuple(samplings))
