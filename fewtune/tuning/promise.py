"""What a model is expected to gain from the next contenders of each task.

Of two tasks, that gets contenders from which more is expected. It is the idea of Ansor's task
scheduler (Zheng et al. 2020, section 6): what a task gained lately, and how far it is behind the
throughput of similar ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fewtune.tuning.state import TaskState

# A gain below this part of a task's time may be noise.
_VISIBLE = 0.01
# What a round of contenders leaves of what was expected: after a gain, and after none.
_LEFT, _LEFT_WITHOUT_GAIN = 0.7, 0.35
# Trust in a task's reaching the throughput of the fastest task of its kind: extents may forbid it.
_REACHABLE = 0.5


def promises(states: Sequence[TaskState]) -> dict[str, float]:
    """By task, the part of the model's time that its next contenders are expected to save."""
    known = [state for state in states if state.gains and state.current_s < math.inf]
    # Memory decides the time of others.
    rates = {s.name: s.task.info.flops / s.current_s for s in known if not s.task.info.is_streamed}
    fastest: dict[str, float] = {}
    served_s: dict[str, float] = {}
    for state in known:
        times = state.weight * state.current_s * state.start.serves
        served_s[state.name] = times / (state.task.info.share or 1.0)
        fastest[state.kind] = max(fastest.get(state.kind, 0.0), rates.get(state.name, 0.0))
    measured, whole_s = sum(state.start.serves for state in known), sum(served_s.values())
    found = {}
    for state in states:
        name, share, behind = state.name, state.start.serves, 0.0
        if whole_s and name in served_s:
            share = measured * served_s[name] / whole_s
        if fastest.get(state.kind) and name in rates:
            behind = _REACHABLE * (1 - rates[name] / fastest[state.kind])
        found[name] = share * expected(state.start.spread, behind, state.gains)
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
