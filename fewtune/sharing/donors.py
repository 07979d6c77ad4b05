"""Which tasks reach less than similar ones do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fewtune.tuning.task_state import TaskState


def behind(states: Iterable[TaskState], rates: Mapping[str, float], part: float) -> list[TaskState]:
    """Tasks that reach less than a part of what similar ones do, or nothing at all.

    Parameters
    ----------
    states : iterable of TaskState
    rates : mapping of float
        Throughput that tasks of an operator family may reach.
    part : float
    """
    return [
        state
        for state in states
        if state.progress.throughput < part * rates.get(state.progress.family, float("inf"))
    ]
