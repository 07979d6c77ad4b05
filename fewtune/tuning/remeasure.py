"""Closing duels: the fastest few of a task are measured again, in turns.

In its race every candidate is measured once, for some milliseconds, and a shared host changes from
second to second. So the fastest of many may have been lucky. The races' winners took 5.9 % longer
in the model than the best of the four fastest schedules of each task (ResNet 50), 3.4 % (VGG 19)
and 3.8 % (MobileNet V2); the duels' winners 1.4, 0.7 and 2.1 % (a Xeon with two cores).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fewtune.measure.measurer import Measurer, module_specs
from fewtune.runtime.tvm import tvm
from fewtune.storage.database import replay
from fewtune.trial.trial import Trial
from fewtune.tuning.task_state import TaskState

# Times of a race with at most this ratio may be in either order.
_CLOSE = 1.04
# So many schedules of a task take turns at most.
MOST_IN_DUEL = 4


class Duel(NamedTuple):
    """The schedules of a task that are measured again, the fastest of the race first."""

    state: TaskState
    trials: list[Trial]


def near_fastest(ranked: Sequence[Trial]) -> list[Trial]:
    """The trials near the fastest, `MOST_IN_DUEL` at most; ``ranked`` has the fastest first."""
    bar_s = ranked[0].outcome.median_s * _CLOSE if ranked else 0.0
    return [trial for trial in ranked if trial.outcome.median_s <= bar_s][:MOST_IN_DUEL]


def measure_duels(
    measurer: Measurer,
    target: tvm.target.Target,
    duels: Sequence[Duel],
    announce: Callable[[TaskState], None],
) -> list[dict[str, float]]:
    """Measure some duels, one after the other; builds that were not kept are compiled together.

    Parameters
    ----------
    measurer : Measurer
    target : Target
    duels : sequence of Duel
    announce : callable
        Notes which task comes next.

    Returns
    -------
    medians_s : list of dict of float
        Of each duel, seconds of one call by trace, the race's fastest first; empty if it failed.
    """
    wanted = []
    with measurer.phases.timed("build_s"):
        for state, trials in duels:
            announce(state)
            for trial in trials:
                kept = measurer.pool.kept_build(state.task.info.workload, trial.key)
                wanted.append(kept or replay(state.task.mod, trial, target).mod)
    ready = iter(measurer.build(wanted))
    found = []
    for state, trials in duels:
        outcomes = measurer.duel([next(ready) for _ in trials], module_specs(state.task.mod))
        found.append(
            {
                trial.key: statistics.median(outcome.run_s)
                for trial, outcome in zip(trials, outcomes, strict=True)
                if outcome.run_s
            }
        )
    measurer.pool.tidy()
    return found
