"""Builds that are kept: the fastest few of every task, for the duels or finals at the end.

Compiling takes most of a short session's time. A schedule that is measured again need not be
compiled again if its worker still has the build.
"""

from __future__ import annotations

from typing import NamedTuple

from fewtune.schedule.space.parallel_axis import parallel_axis
from fewtune.trial.worker_reply import Built

# Builds that are kept of each task: as many as take part in finals.
MOST_KEPT = 4
# Of these, or besides them, builds that split another axis than the fastest.
_OTHERS_KEPT = 2


class _Build(NamedTuple):
    time_s: float
    built: Built
    parallel_axis: int | None


class Kept:
    """Which builds the workers keep.

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
            The task's workload.
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
        """The numbers of the builds that a worker keeps."""
        every = (each.built for builds in self._builds.values() for each in builds.values())
        return [built.number for built in every if built.worker == worker]
