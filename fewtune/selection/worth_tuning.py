"""What is worth a search: which tasks, and which clusters of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fewtune.artifacts import Cluster, TaskInfo
from fewtune.selection.cluster import similarity_sum
from fewtune.selection.options import SelectOptions

# Families that do much arithmetic on each element, so that tiling, which is what is searched,
# decides their time. The others move data once: a default schedule already does that at the
# memory's speed.
_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
SEARCHED_OPERATORS = frozenset(
    {
        "batch_matmul",
        "conv2d_transpose",
        "dense",
        *_CONVOLUTIONS,
        *(f"depthwise_{family}" for family in _CONVOLUTIONS),
        *(f"group_{family}" for family in _CONVOLUTIONS),
    }
)
# A search for a single task pays only if it is a large part of the model: otherwise schedules drawn
# by rule are as good in fewer trials.
_LONE_TIMES = 4


def is_worth_searching(task: TaskInfo, min_share: float) -> bool:
    """Whether a task is of a family that is searched, and enough of the model's estimated time."""
    return task.operator in SEARCHED_OPERATORS and task.share >= min_share


def is_small(task: TaskInfo, options: SelectOptions) -> bool:
    """Whether a task is searched only if its measured time turns out to be worth it."""
    is_worth_measuring = is_worth_searching(task, options.least_share)
    return is_worth_measuring and not is_worth_searching(task, options.min_share)


def kept_clusters(
    groups: Sequence[tuple[int, list[int]]],
    values: np.ndarray,
    tasks: Sequence[TaskInfo],
    min_share: float,
    *,
    needs_one: bool = True,
) -> list[Cluster]:
    """The clusters that are worth a search of their own, the largest share first.

    Parameters
    ----------
    groups : sequence of (int, list of int)
        Representative and members, as places in ``tasks``.
    values : numpy.ndarray
        Similarities, shape (tasks, tasks).
    tasks : sequence of TaskInfo
    min_share : float
        Clusters below this share of the model's estimated time are left out, clusters of one task
        below four times it, and clusters whose time memory decides; with 0 all are kept.
    needs_one : bool
        Keep the largest one, however small.
    """
    clusters = [
        (
            sum(tasks[index].share for index in group),
            Cluster(
                representative=tasks[leader].name,
                members=[tasks[index].name for index in sorted(group)],
                similarity_sum=similarity_sum(leader, group, values),
            ),
        )
        for leader, group in groups
        if min_share == 0 or not all(tasks[index].is_streamed for index in group)
    ]
    if not clusters and groups and needs_one:
        # Memory bounds all clusters: one search is still better than none.
        return kept_clusters(groups, values, tasks, 0.0)[:1]
    clusters.sort(key=lambda pair: (-pair[0], pair[1].representative))
    return [
        cluster
        for place, (share, cluster) in enumerate(clusters)
        if share >= min_share * (_LONE_TIMES if len(cluster.members) == 1 else 1)
        or (place == 0 and needs_one)
    ]
