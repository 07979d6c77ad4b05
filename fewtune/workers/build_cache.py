"""Builds that live on: the fastest few of every task, ready for a duel, or for finals, at the end.

Compiling is what most of a short session's time goes to. A schedule that is to be measured again
beside others need not be compiled again where its worker still has it.
"""

from __future__ import annotations

from typing import NamedTuple

from fewtune.schedule.space.parallel_axis import parallel_axis
from fewtune.trial.worker_reply import Built

# Builds of a task that live on: as many as meet in finals.
MOST_KEPT = 4
# Of these, or besides them, builds that split another axis than the fastest.
_OTHERS_KEPT = 2


class _Build(NamedTuple):
    time_s: float
    built: Built
    parallel_axis: int | None


class Kept:
    """Which builds the workers are to keep.

    Parameters
    ----------
    most : int
        Builds of each task. The fastest two that split another axis among the threads than the
        fastest of all are kept too: finals in the model need them. Others replace the slowest.
    """

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._most = most
        self._builds: dict[str, dict[str, _Build]] = {}

    def take(self, workload: str, key: str, built: Built, time_s: float) -> None:
        """Take in a build that was measured.

        Parameters
        ----------
        workload : str
            Its task's.
        key : str
            Its trace.
        built : Built
        time_s : float
            Of one call.
        """
        builds = self._builds.setdefault(workload, {})
        builds[key] = _Build(time_s, built, parallel_axis(key))
        ranked = sorted(builds, key=lambda each: builds[each].time_s)
        first = builds[ranked[0]].parallel_axis
        others = [each for each in ranked if builds[each].parallel_axis != first][:_OTHERS_KEPT]
        for slowest in ranked[self._most :]:
            if slowest not in others:
                del builds[slowest]

    def find(self, workload: str, key: str) -> Built | None:
        """The build of a trace; its worker may have been replaced since."""
        found = self._builds.get(workload, {}).get(key)
        return found.built if found is not None else None

    def numbers(self, worker: int) -> list[int]:
        """What a worker is to keep, by its numbers."""
        every = (each.built for builds in self._builds.values() for each in builds.values())
        return [built.number for built in every if built.worker == worker]
