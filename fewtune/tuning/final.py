"""Which of a task's schedules is the fastest, by measurements in turns."""

from __future__ import annotations

import statistics
from itertools import permutations, starmap
from operator import le
from typing import NamedTuple


class Final(NamedTuple):
    """The result of one task's contenders; the first is the one that the library has.

    Attributes
    ----------
    keys : list of str
        The contenders' traces.
    medians_s : list of list of float
        By process and contender: seconds of all its calls in one run of the model, and what the
        calls after it take longer because of it.
    chosen : int
        The place of the fastest.
    gain_s : float
        Seconds a run that the winner of one process is faster than the first contender in another
        process, averaged over both ways.
    """

    keys: list[str]
    medians_s: list[list[float]]
    chosen: int
    gain_s: float

    @staticmethod
    def of(keys: list[str], processes: list[list[list[float]]]) -> Final:
        """Choose by samples: a list per process, in it a list per contender.

        How fast a kernel reads its weights depends on where a process has them in memory. So a
        contender other than the first wins only if it is faster in every process.
        """
        medians_s = [[statistics.median(each) for each in samples] for samples in processes]
        by_key = [*zip(*medians_s, strict=True)]
        able = [place for place, own_s in enumerate(by_key) if all(map(le, own_s, by_key[0]))]
        chosen = min(able, key=lambda place: sum(by_key[place]))
        # One process alone chooses and judges.
        pairs = [*permutations(medians_s, 2)] or [(medians_s[0], medians_s[0])]
        return Final(keys, medians_s, chosen, statistics.mean(starmap(_gain, pairs)))

    def time_s(self, place: int) -> float:
        """Seconds of all calls of a contender in one run: the mean of the processes' medians."""
        return statistics.mean(times_s[place] for times_s in self.medians_s)


def _gain(choosing_s: list[float], judging_s: list[float]) -> float:
    """Seconds that the fastest of ``choosing_s`` gains on the first, by ``judging_s``."""
    return judging_s[0] - judging_s[min(range(len(choosing_s)), key=choosing_s.__getitem__)]
