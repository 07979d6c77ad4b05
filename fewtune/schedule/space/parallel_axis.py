"""The axis of a kernel's result that is split among threads."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from fewtune.artifacts import TaskInfo
from fewtune.schedule.space.design_space import SPATIAL_LEVELS
from fewtune.task.analysis import PRODUCTS, TILES


def parallel_axis(key: str) -> int | None:
    """The first axis that a schedule splits among threads; None if its decisions do not show it.

    Parameters
    ----------
    key : str
        A trace as JSON text.
    """
    return parallel_axis_of(_decisions(json.loads(key)))


def parallel_axis_of(decisions: Iterable[Any]) -> int | None:
    """The first axis that decisions split among threads.

    MetaSchedule fuses the outermost levels of all spatial tiles into one parallel loop, and each
    thread takes a part of it.

    Returns
    -------
    axis : int or None
        The place of the first spatial tile whose outermost level has more than one iteration; None
        if there is no such tile.
    """
    outermost = [decision[0] for decision in decisions if _is_spatial(decision)]
    return next((axis for axis, count in enumerate(outermost) if count > 1), None)


def _decisions(trace: Any) -> list[Any]:
    """The decisions of a trace in their order; none if it is no trace."""
    if not isinstance(trace, list) or len(trace) != 2 or not isinstance(trace[1], list):
        return []
    return [entry[1] for entry in trace[1] if isinstance(entry, list) and len(entry) > 1]


def _is_spatial(decision: Any) -> bool:
    return isinstance(decision, list | tuple) and len(decision) == SPATIAL_LEVELS


def usual_axis(task: TaskInfo) -> int | None:
    """The axis of a task's result that default schedules split among threads.

    It is the outermost axis. For the products between Winograd's transforms it is the axis of
    tiles, which the transforms split.
    """
    if task.anchor.startswith(PRODUCTS):
        return TILES
    return next((axis for axis, extent in enumerate(task.shapes[-1]) if extent > 1), None)


def usual_axes(tasks: Iterable[TaskInfo]) -> dict[str, int | None]:
    """The `usual_axis` of each task, by its name."""
    return {task.name: usual_axis(task) for task in tasks}
