"""How much of two tasks' tuning spaces is common: the similarity rate, 0 to 1.

The idea is that of selective tuning for AutoTVM (C. H. Yu, TVM RFC #4188): a schedule that is good
for one task can serve another as far as their tuning spaces overlap. A knob of AutoTVM is here a
sampling instruction of a MetaSchedule trace.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fewtune.similarity.space_signature import (
    CategoricalSampling,
    DesignSpace,
    LocationSampling,
    Sampling,
    SpaceTrace,
    TileSampling,
    divisors,
)

if TYPE_CHECKING:
    from fewtune.task.extract import Task
from dataclasses import dataclass


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


def jaccard(a: frozenset[int], b: frozenset[int]) -> float:
    """Size of the intersection over size of the union; 0 if both are empty."""
    union = len(a | b)
    return len(a & b) / union if union else 0.0


def sampling_overlap(a: Sampling, b: Sampling) -> float:
    """Overlap of the domains of two sampling instructions.

    Tiles: the divisors that both extents have over those that either has, for a tile's factors
    are divisors of its extent. Categories: the candidates both have over those either has.
    Compute locations: 1. Kinds that differ: 0, also tiles of differing numbers of parts.

    Returns
    -------
    overlap : float
        0 to 1, and 1 for equal domains.
    """
    if isinstance(a, TileSampling) and isinstance(b, TileSampling):
        if (a.parts, a.max_innermost) != (b.parts, b.max_innermost):
            return 0.0
        return jaccard(divisors(a.extent), divisors(b.extent))
    if isinstance(a, CategoricalSampling) and isinstance(b, CategoricalSampling):
        return jaccard(a.candidates, b.candidates)
    return float(isinstance(a, LocationSampling) and isinstance(b, LocationSampling))


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
    return mean_of_best([[trace_overlap(x, y) for y in theirs] for x in ours])


def mean_of_best(overlaps: Sequence[Sequence[float]]) -> float:
    """The mean of each row's and each column's largest overlap.

    Parameters
    ----------
    overlaps : sequence of sequence of float
        One row a trace of the one task, one column a trace of the other; at least one of each.
    """
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
