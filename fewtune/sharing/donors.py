"""Who is behind of what similar tasks reach, and who of their kind did better."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from fewtune.tuning.task_state import TaskState

# Parts of the throughput of the best similar task: below the first, further representatives are
# asked; below the second, tasks that reached it.
FAR, NEAR = 0.85, 0.95
# The part of a gap that further donors close: a few per cent of it were measured.
_CLOSED = 0.1
_MOST = 3


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


def siblings(state: TaskState, states: Iterable[TaskState], reached: float) -> list[str]:
    """Tasks of the same operator family that did better by their own search or share.

    Parameters
    ----------
    state : TaskState
    states : iterable of TaskState
    reached : float
        Throughput that they have at least.

    Returns
    -------
    names : list of str
        The likest first: with as many buffers, which tells a tail that adds a residual from one
        that does not, then of the most similar size.
    """
    ours = state.task.info

    def unlikeness(other: TaskState) -> tuple[bool, float, str]:
        info = other.task.info
        size = abs(math.log(max(info.flops, 1.0) / max(ours.flops, 1.0)))
        return len(info.shapes) != len(ours.shapes), round(size, 9), info.name

    better = [
        other
        for other in states
        if other is not state
        and other.progress.family == state.progress.family
        # A default schedule makes no choices to give.
        and other.best_s == other.progress.current_s
        and other.progress.throughput >= reached
    ]
    return [other.task.info.name for other in sorted(better, key=unlikeness)[:_MOST]]


def whom_to_ask(
    states: Sequence[TaskState],
    second: Mapping[str, list[str]],
    rates: Mapping[str, float],
    is_worth_it: Callable[[float], bool],
) -> dict[str, list[str]]:
    """Further donors of each task that is behind, by its name.

    Parameters
    ----------
    states : sequence of TaskState
        Tasks that took schedules of their first donors.
    second : mapping of list of str
        The next most similar representatives of each, by its name.
    rates : mapping of float
        Throughput that tasks of an operator family may reach.
    is_worth_it : callable
        Whether so many seconds of the model's latency are worth a batch.
    """
    far = {state.task.info.name for state in behind(states, rates, FAR)}
    near = {state.task.info.name for state in behind(states, rates, NEAR)}
    asked = {}
    for state in states:
        name, ours, donors = state.task.info.name, state.progress, []
        if state.taken is not None:
            continue
        rate = rates.get(ours.family, float("inf"))
        gap_s = ours.weight * (ours.current_s - ours.work / rate)
        if is_worth_it(_CLOSED * gap_s):
            donors += siblings(state, states, NEAR * rate) if name in near else []
            donors += second.get(name, []) if name in far else []
        if donors:
            asked[name] = donors
    return asked
