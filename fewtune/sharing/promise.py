"""What a model is expected to gain from the next contenders of each task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fewtune.tuning.task_state import TaskState

# A gain below this part of a task's time may be noise.
_VISIBLE = 0.01
# What a round of contenders leaves of what was expected: after a gain, and after none.
_LEFT, _LEFT_WITHOUT_GAIN = 0.7, 0.35
# Trust in a task's reaching the throughput of the fastest task of its kind: extents may forbid it.
_REACHABLE = 0.5


def promises(states: Sequence[TaskState], spreads: Mapping[str, float]) -> dict[str, float]:
    """By task, the part of the model's time that its next contenders are expected to save.

    Parameters
    ----------
    states : sequence of TaskState
    spreads : mapping of float
        By task, the part of its time that another schedule may save, before anything is measured.
    """
    fastest: dict[str, float] = {}
    for each in (state.progress for state in states):
        fastest[each.kind] = max(fastest.get(each.kind, 0.0), each.throughput)
    whole_s = sum(s.progress.share_s for s in states if s.progress.current_s != math.inf)
    found = {}
    for state in states:
        progress, name = state.progress, state.task.info.name
        is_measured = progress.current_s != math.inf and bool(state.gains)
        share = progress.share_s / whole_s if is_measured else state.task.info.share
        behind = 0.0
        if is_measured and not state.task.info.is_streamed:
            behind = _REACHABLE * (1 - progress.throughput / fastest[progress.kind])
        found[name] = share * expected(spreads.get(name, 0.0), behind, state.gains)
    return found


def expected(spread: float, behind: float, gains: Sequence[float]) -> float:
    """The part of its time that a task is expected to save in its next round.

    Parameters
    ----------
    spread, behind : float
        Parts of its time that it may save: by the predictor's doubt, and to be as fast as others.
    gains : sequence of float
        What its earlier rounds saved.
    """
    found = max(spread, behind)
    for gain in gains:
        found = max(_LEFT * found, gain / 2) if gain >= _VISIBLE else _LEFT_WITHOUT_GAIN * found
    return found
