"""Clusters of similar tasks, and the task that stands for each.

The graph has the tasks as nodes and joins those that are similar enough; its maximal cliques are
the candidate clusters (C. H. Yu, TVM RFC #4188). Everything here is decided by similarities, then
by stated ties, never by the order of a set: equal input gives equal clusters.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np

# A graph of n nodes can have 3^(n/3) maximal cliques (Moon and Moser, 1965).
MOST_CLIQUES = 20_000
# By how much the threshold rises when there are more: sparser graphs have fewer cliques.
_RAISE = 0.05
# Similarities that differ by rounding alone are ties.
_DIGITS = 9

Groups = list[list[int]]


def clique_groups(
    matrix: np.ndarray, min_similarity: float, names: Sequence[str], most: int = MOST_CLIQUES
) -> tuple[Groups, str]:
    """Partition the tasks into maximal cliques of similar tasks.

    A task may be in several cliques. In each round the clique with the largest sum of similarities
    among its tasks that are still free takes them all; ties go to the larger one, then to the one
    whose names sort first. Each round places at least one task, so there are at most as many
    rounds as tasks.

    Parameters
    ----------
    matrix : numpy.ndarray
        Similarities, shape (tasks, tasks), symmetric, 0 to 1.
    min_similarity : float
        Tasks at least this similar are joined; tasks of similarity 0 never are.
    names : sequence of str
        The tasks' names, all different.
    most : int
        Cliques to enumerate at most. With more, the threshold is raised in steps until there are
        fewer; at more than 1 nothing is joined any more, so this ends.

    Returns
    -------
    groups : list of list of int
        Indices of the tasks; each task in one group.
    note : str
        Says so when the threshold was raised, otherwise empty.
    """
    threshold = min_similarity
    while True:
        cliques = _maximal_cliques(matrix, threshold, most)
        if cliques is not None:
            break
        threshold = round(threshold + _RAISE, _DIGITS)
    note = ""
    if threshold != min_similarity:
        note = (
            f"more than {most} maximal cliques at min_similarity {min_similarity:g}: "
            f"raised to {threshold:g}"
        )
    groups: Groups = []
    # Ranks are kept, since a round leaves most cliques as they were.
    ranks = {clique: _clique_rank(clique, matrix, names) for clique in cliques}
    while ranks:
        taken = min(ranks, key=ranks.__getitem__)
        groups.append(sorted(taken))
        rests = dict.fromkeys(clique - taken for clique in ranks)
        ranks = {
            rest: ranks[rest] if rest in ranks else _clique_rank(rest, matrix, names)
            for rest in rests
            if rest
        }
    return groups, note


def agglomerative_groups(
    matrix: np.ndarray, min_similarity: float, clusters: int | None = None
) -> Groups:
    """Partition the tasks by average-linkage clustering of their distances, 1 - similarity.

    Parameters
    ----------
    matrix : numpy.ndarray
        Similarities, shape (tasks, tasks), symmetric, 0 to 1.
    min_similarity : float
        Clusters are merged while their mean similarity is at least this.
    clusters : int, optional
        Merge down to this many instead. There can be more, since clusters that share nothing at
        all are not left together: see `split_unrelated`.

    Returns
    -------
    groups : list of list of int
        Indices of the tasks; each task in one group.
    """
    count = len(matrix)
    if count < 2:
        return [[index] for index in range(count)]
    # The import takes two seconds, and cliques do not need it.
    from sklearn.cluster import AgglomerativeClustering

    by_count = clusters is not None
    # scikit-learn stops at the threshold itself; a pair just as similar as asked for is merged.
    threshold = None if by_count else float(np.nextafter(1 - min_similarity, 2))
    labels = AgglomerativeClustering(
        n_clusters=None if clusters is None else min(clusters, count),
        metric="precomputed",
        linkage="average",
        distance_threshold=threshold,
    ).fit_predict(1 - matrix)
    groups: dict[int, list[int]] = {}
    for index, label in enumerate(labels):
        groups.setdefault(int(label), []).append(index)
    return list(groups.values())


def representative(
    group: Sequence[int], matrix: np.ndarray, shares: Sequence[float], names: Sequence[str]
) -> int:
    """The task most similar to the rest of its group.

    Ties go to the task with the larger share of the model's time, then to the name that sorts
    first.

    Returns
    -------
    index : int
        A member of ``group``.
    """
    return min(
        group,
        key=lambda index: (-similarity_sum(index, group, matrix), -shares[index], names[index]),
    )


def split_unrelated(
    groups: Groups, matrix: np.ndarray, shares: Sequence[float], names: Sequence[str]
) -> list[tuple[int, list[int]]]:
    """Choose representatives, and split off members that have nothing in common with them.

    A mean can join tasks of similarity 0, whose schedules cannot be moved. Such members form a
    group of their own with a representative. This repeats until none is left; each step places at
    least one representative.

    Returns
    -------
    clusters : list of tuple
        Representative and members, the representative among them.
    """
    result: list[tuple[int, list[int]]] = []
    waiting = [list(group) for group in groups]
    while waiting:
        group = waiting.pop(0)
        chosen = representative(group, matrix, shares, names)
        strangers = [index for index in group if index != chosen and matrix[chosen, index] <= 0]
        if strangers:
            waiting.insert(0, strangers)
        result.append((chosen, [index for index in group if index not in strangers]))
    return result


def similarity_sum(index: int, group: Sequence[int], matrix: np.ndarray) -> float:
    """Sum of a task's similarities to the other members of its group."""
    return round(sum(float(matrix[index, other]) for other in group if other != index), _DIGITS)


def _maximal_cliques(
    matrix: np.ndarray, threshold: float, most: int
) -> list[frozenset[int]] | None:
    """All maximal cliques, or None if there are more than ``most``."""
    joined = (matrix >= threshold - 10.0**-_DIGITS) & (matrix > 0)
    import networkx

    graph = networkx.Graph()
    graph.add_nodes_from(range(len(matrix)))
    graph.add_edges_from((int(i), int(j)) for i, j in np.argwhere(np.triu(joined, k=1)))
    if not graph.number_of_edges():
        # Without edges there are as many cliques as tasks: no threshold gives fewer.
        return [frozenset([index]) for index in graph]
    cliques = [frozenset(clique) for clique in islice(networkx.find_cliques(graph), most + 1)]
    return cliques if len(cliques) <= most else None


def _clique_rank(
    clique: frozenset[int], matrix: np.ndarray, names: Sequence[str]
) -> tuple[float, int, list[str]]:
    members = sorted(clique)
    block = matrix[np.ix_(members, members)]
    inner = float(np.triu(block, k=1).sum())
    return (-round(inner, _DIGITS), -len(members), sorted(names[index] for index in members))
