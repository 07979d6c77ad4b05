"""Clusters of similar tasks, and the task that stands for each.

Tasks that are similar enough are joined; those of a cluster are joined each with each (cliques, as
in C. H. Yu, TVM RFC #4188). Everything here is decided by similarities, then by stated ties, never
by the order of a set: equal input gives equal clusters.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Similarities that differ by rounding alone are ties.
_DIGITS = 9


def cliques(matrix: np.ndarray, min_similarity: float, names: Sequence[str]) -> list[list[int]]:
    """Partition the tasks into cliques of similar tasks.

    A clique grows from each task that is still free: the most similar task that is joined to all
    members comes next. The clique with the largest sum of similarities is taken; ties go to the
    larger one, then to the one whose names sort first.

    Parameters
    ----------
    matrix : numpy.ndarray
        Similarities, shape (tasks, tasks), symmetric, 0 to 1.
    min_similarity : float
        Tasks at least this similar are joined; tasks of similarity 0 never are.
    names : sequence of str
        The tasks' names, all different.

    Returns
    -------
    groups : list of list of int
        Indices of the tasks; each task in one group.
    """
    joined = (matrix >= min_similarity - 10.0**-_DIGITS) & (matrix > 0)
    near = [{int(other) for other in np.flatnonzero(row)} for row in joined]
    free, groups = set(range(len(matrix))), list[list[int]]()

    def grown(first: int) -> list[int]:
        members = [first]
        for other in sorted(near[first] & free - {first}, key=lambda i: (-matrix[first, i], i)):
            if near[other].issuperset(members):
                members.append(other)
        return sorted(members)

    def rank(group: list[int]) -> tuple[float, int, list[str]]:
        inner = sum(similarity_sum(member, group, matrix) for member in group)
        return -round(inner, _DIGITS), -len(group), sorted(names[member] for member in group)

    while free:
        groups.append(min((grown(first) for first in free), key=rank))
        free.difference_update(groups[-1])
    return groups


def similarity_sum(index: int, group: Sequence[int], matrix: np.ndarray) -> float:
    """Sum of a task's similarities to the other members of its group."""
    return round(sum(float(matrix[index, other]) for other in group if other != index), _DIGITS)
