"""Ways to choose representatives, to compare the default one with.

Each gives clusters as `fewtune.selection.cluster` does: a representative and the members that take
schedules from it, itself among them, as places in one list of tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fewtune.artifacts import Selection, TaskInfo
from fewtune.runtime.tvm import ms
from fewtune.selection.cluster import (
    agglomerative_groups,
    clique_groups,
    representative,
    split_unrelated,
)
from fewtune.selection.worth_tuning import kept_clusters
from fewtune.task.extract import Task

Clusters = list[tuple[int, list[int]]]


@dataclass(frozen=True)
class Candidates:
    """The tasks worth searching and how similar they are.

    Parameters
    ----------
    tasks : list of Task
    matrix : numpy.ndarray
        Similarities in their order, shape (tasks, tasks), symmetric, 0 to 1.
    min_similarity : float
        From which the default way joins two tasks.
    """

    tasks: list[Task]
    matrix: np.ndarray
    min_similarity: float

    @property
    def infos(self) -> list[TaskInfo]:
        return [task.info for task in self.tasks]

    @property
    def names(self) -> list[str]:
        return [info.name for info in self.infos]

    @property
    def shares(self) -> list[float]:
        return [info.share for info in self.infos]


Choose = Callable[[Candidates], Clusters]


def cliques(found: Candidates) -> Clusters:
    """The default way."""
    groups, _ = clique_groups(found.matrix, found.min_similarity, found.names)
    return split_unrelated(groups, found.matrix, found.shares, found.names)


def agglomerative(found: Candidates) -> Clusters:
    """Average linkage, down to as many clusters as there are cliques.

    There can be more: members that their representative has nothing in common with are parted
    from it, as in the default way.
    """
    groups = agglomerative_groups(found.matrix, 0.0, max(1, len(cliques(found))))
    return split_unrelated(groups, found.matrix, found.shares, found.names)


def random_representatives(found: Candidates, seed: int) -> Clusters:
    """As many representatives as there are cliques, drawn; others take the most similar one.

    A task that has nothing in common with any of them could take schedules from none: along the
    same random order such tasks become representatives as well, until every one is served. So
    there can be more than there are cliques.
    """
    order = [int(i) for i in np.random.default_rng(seed).permutation(len(found.tasks))]
    count = len(cliques(found))
    chosen = order[:count]
    for index in order[count:]:
        if not any(found.matrix[index, drawn] > 0 for drawn in chosen):
            chosen.append(index)
    members: dict[int, list[int]] = {index: [index] for index in chosen}
    for index in sorted(set(order) - set(chosen)):
        # Ties go to the name, as everywhere.
        nearest = min(chosen, key=lambda c: (-found.matrix[index, c], found.names[c]))
        members[nearest].append(index)
    return [(index, sorted(group)) for index, group in members.items()]


def one_a_family(found: Candidates) -> Clusters:
    """One representative an operator family, the task with the largest share.

    Members that have nothing in common with it stay with it: nothing can be moved to them, and
    sharing has to find another way for them.
    """
    families: dict[str, list[int]] = {}
    for index, info in enumerate(found.infos):
        families.setdefault(info.operator, []).append(index)
    return [
        (min(group, key=lambda i: (-found.shares[i], found.names[i])), group)
        for group in families.values()
    ]


def equal_anchors(found: Candidates) -> Clusters:
    """Tasks whose anchor blocks are equal, whatever is fused behind them (apache/tvm #13206).

    TVM's own notion: what a database with ``module_equality="anchor-block"`` takes for one
    workload.
    """
    groups: list[list[int]] = []
    known: list[ms.database.MemoryDatabase] = []
    for index, task in enumerate(found.tasks):
        for group, database in zip(groups, known, strict=True):
            if database.has_workload(task.mod):
                group.append(index)
                break
        else:
            database = ms.database.MemoryDatabase(module_equality="anchor-block")
            database.commit_workload(task.mod)
            known.append(database)
            groups.append([index])
    return [
        (representative(group, found.matrix, found.shares, found.names), group) for group in groups
    ]


def as_selection(
    base: Selection,
    found: Candidates,
    clusters: Clusters,
    name: str,
    method: str,
    min_cluster_share: float = 0.0,
) -> Selection:
    """Clusters as the selection that sharing takes; set aside is what ``base`` sets aside.

    Clusters below ``min_cluster_share`` of the estimated time have no representative, as in the
    default way.
    """
    kept = kept_clusters(clusters, found.matrix, found.infos, min_cluster_share)
    served = {member for cluster in kept for member in cluster.members}
    return Selection(
        model=base.model,
        strategy=name,
        method=method,
        clusters=kept,
        alone=[task for task in found.names if task not in served],
        set_aside=base.set_aside,
        set_aside_rule=base.set_aside_rule,
    )
