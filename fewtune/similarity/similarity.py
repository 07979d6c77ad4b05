"""How much of two tasks' tuning spaces is common: the similarity rate, 0 to 1.

The idea is that of selective tuning for AutoTVM (C. H. Yu, TVM RFC #4188): a schedule that is good
for one task can serve another as far as their tuning spaces overlap. A knob of AutoTVM is here a
sampling instruction of a MetaSchedule trace: a straight-line schedule program (Shao et al., Tensor
Program Optimization with Probabilistic Programs, NeurIPS 2022).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fewtune.errors import last_line
from fewtune.runtime.tvm import register_intrinsics, tvm
from fewtune.schedule.space.design_space import CATEGORICAL, LOCATION, TILE, instructions
from fewtune.schedule.space.search_space import generated
from fewtune.schedule.tiling import divisors

if TYPE_CHECKING:
    from fewtune.task.extract import Task


# These say which blocks the program handles and which elementwise tails it folds away. They differ
# between a convolution with a bias and one with a bias and a residual, whose tiles are alike.
_BOOKKEEPING = ("Get", "ComputeInline", "ReverseComputeInline")
_TILING = "meta_schedule.tiling_structure"


class Sampling(NamedTuple):
    """What one sampling instruction chooses of.

    Attributes
    ----------
    kind : str
        For a tile, with the number of its parts and the largest innermost one.
    values : tuple of int
        The factors of a tile that can occur: the divisors of its extent. The candidates of a
        categorical choice. None for a location: the loops on offer are known only while scheduling.
        They follow from those that the form has made so far, so this is one and the same choice
        wherever the form is.
    """

    kind: str
    values: tuple[int, ...] = ()


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


def _reduce(trace: Any) -> SpaceTrace:
    form: list[str] = []
    samplings: list[Sampling] = []
    for instruction in instructions(trace):
        kind = step = str(instruction.kind.name)
        if kind.startswith(_BOOKKEEPING):
            continue
        if kind == "Annotate":
            key = str(instruction.attrs[0])
            step = f"{kind} {key}"
            if key == _TILING:
                step = f"{step} {instruction.inputs[1]}"
        elif kind == TILE:
            # The trace knows the loop by a variable; its first decision multiplies to the extent.
            extent = math.prod(int(factor) for factor in trace.decisions[instruction])
            parts, max_innermost = (int(value) for value in instruction.attrs)
            step = f"{kind} {parts}"
            samplings.append(Sampling(f"{step} {max_innermost}", tuple(divisors(extent))))
        elif kind == CATEGORICAL:
            samplings.append(Sampling(kind, tuple(int(value) for value in instruction.attrs[0])))
        elif kind == LOCATION:
            samplings.append(Sampling(kind))
        elif kind.startswith("Sample"):
            # The domain of this kind is not known: traces are comparable if its text is equal.
            step = f"{kind} {[str(value) for value in instruction.attrs]}"
        form.append(step)
    return SpaceTrace(tuple(form), tuple(samplings))


@dataclass(frozen=True)
class SimilarityMatrix:
    """Similarities of the tasks that were compared.

    Parameters
    ----------
    names : tuple of str
        The tasks' names.
    values : numpy.ndarray
        Shape (tasks, tasks), symmetric, 0 to 1.
    """

    names: tuple[str, ...]
    values: np.ndarray

    def ordered(self, names: list[str]) -> SimilarityMatrix:
        """The same similarities with the tasks in another order."""
        places = [self.names.index(name) for name in names]
        return SimilarityMatrix(tuple(names), self.values[np.ix_(places, places)])


@cache
def sampling_overlap(a: Sampling, b: Sampling) -> float:
    """Overlap of the domains of two sampling instructions: values of both over values of either.

    Returns
    -------
    overlap : float
        0 to 1, 1 for equal domains, 0 for kinds that differ.
    """
    if a.kind != b.kind:
        return 0.0
    either = {*a.values, *b.values}
    return len({*a.values} & {*b.values}) / len(either) if either else 1.0


def trace_overlap(a: SpaceTrace, b: SpaceTrace) -> float:
    """Overlap of two design spaces: the geometric mean over their sampling instructions.

    The product itself, which the RFC's draft takes, is the overlap of the two spaces as sets of
    points. With the nine instructions of a tiled convolution it is near zero for all but twins
    (0.7 each makes 0.04) and shrinks with the number of loops, so no one threshold suits a
    convolution and a matrix product. Its n-th root keeps the order among traces of a form, is
    still zero where any instruction's domains are disjoint, and means the same for all forms: the
    overlap of a typical instruction.

    Returns
    -------
    overlap : float
        0 to 1; 0 for traces of different form, and for those that sample nothing: nothing can be
        said of those, and nothing shared.
    """
    if a.form != b.form or not a.samplings or len(a.samplings) != len(b.samplings):
        return 0.0
    overlaps = [sampling_overlap(*pair) for pair in zip(a.samplings, b.samplings, strict=True)]
    if a.samplings == b.samplings:
        return 1.0
    return math.prod(overlaps) ** (1 / len(overlaps))


def similarity_rate(a: DesignSpace, b: DesignSpace) -> float:
    """Similarity of two tasks' tuning spaces.

    Every trace that samples something, of either task, is matched with the one of the other task
    that it overlaps most; the rate is the mean of these best overlaps over both tasks' traces. A
    trace whose form the other task lacks counts as 0.

    Returns
    -------
    rate : float
        0 to 1, symmetric, 1 with an equal space; 0 if either has nothing to sample.
    """
    ours = [trace for trace in a.traces if trace.samplings]
    theirs = [trace for trace in b.traces if trace.samplings]
    if not ours or not theirs:
        return 0.0
    overlaps = [[trace_overlap(x, y) for y in theirs] for x in ours]
    best = [*map(max, overlaps), *map(max, zip(*overlaps, strict=True))]
    # An exact sum, so that rounding cannot tell (a, b) from (b, a).
    return math.fsum(best) / len(best)


def similarity_matrix(tasks: Sequence[Task], spaces: Sequence[DesignSpace]) -> np.ndarray:
    """Similarity of every pair of tasks.

    Parameters
    ----------
    tasks : sequence of Task
        The tasks; those of different operator families have similarity 0, however alike their
        loops: their accesses to memory are not.
    spaces : sequence of DesignSpace
        Their design spaces, in the same order.

    Returns
    -------
    matrix : numpy.ndarray
        Shape (tasks, tasks), float64, symmetric, 1 on the diagonal.
    """
    matrix = np.eye(len(tasks))
    for i, (task, space) in enumerate(zip(tasks, spaces, strict=True)):
        for j in range(i):
            if task.info.operator == tasks[j].info.operator:
                matrix[i, j] = matrix[j, i] = similarity_rate(space, spaces[j])
    return matrix
