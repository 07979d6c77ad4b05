"""Tasks that are slower than similar ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fewtune.tuning.task_state import TaskState


def behind(states: Iterable[TaskState], rates: Mapping[str, float], part: float) -> list[TaskState]:
    """Tasks below a part of the throughput of similar ones.

    Parameters
    ----------
    states : iterable of TaskState
    rates : mapping of float
        Throughput that each operator family may reach.
    part : float
        Of that throughput.
    """
    return [
        state
        for state in states
        if state.progress.throughput < part * rates.get(state.progress.family, float("inf"))
    ]
