"""Whether the machine is slow just now: a known kernel is timed around every measurement.

On a shared host everything may run up to twice slower, for seconds or minutes. A candidate that
is measured then looks slow, or its competitor fast. So the same few multiply-adds are timed before
and after each candidate. If they are slow, the candidate is measured again.

Their usual time is the reference, not their best: a rested core runs a fifth faster for a moment
than one that was measuring. With the best as reference, every candidate on a Xeon was measured two
or three times.
"""

from __future__ import annotations

import bisect
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

_SLOW_RATIO = 1.25
# The usual time is this quantile of all times of the kernel.
_GOOD_TIMES = 0.2
# It is at most this many times the least: the host may be slow nearly all the time.
_MOST_OVER_FLOOR = 1.2
_MOST_REPEATS = 2
_MOST_EXTRA_S = 0.2
_FIRST_SAMPLES = 10


class Attempt(NamedTuple):
    """One measurement of a candidate.

    Attributes
    ----------
    run_s : list of float
        Seconds of one call, one sample for each repeat.
    dropped : bool
        Whether it ended after its first single run, since it was far too slow to win.
    """

    run_s: list[float]
    dropped: bool


class Measured(NamedTuple):
    """What a worker reports about a candidate's measurement.

    Attributes
    ----------
    run_s : list of float
        Seconds of one call, one sample for each repeat, from the longest measurement that it
        reached, in the fastest attempt.
    repeats : int
        Attempts beyond the first.
    most_flops_s : float or None
        Operations a second of the calibration kernel at its fastest so far: about the machine's
        peak. None on a GPU or a board, where nothing is calibrated.
    """

    run_s: list[float]
    repeats: int = 0
    most_flops_s: float | None = None


class Calibration:
    """Repeats measurements around which a fixed kernel ran slow.

    Parameters
    ----------
    kernel : callable
        Runs the calibration kernel and returns its seconds.
    flops : float
        Operations of one such run.
    clock : callable
        Monotonic seconds; tests give a fake one.

    Attributes
    ----------
    floor_s : float
        The kernel's fastest time so far.
    good_s : float
        Its usual time: a fifth of its times so far were shorter. It is at most 1.2 times the
        fastest.
    """

    def __init__(
        self,
        kernel: Callable[[], float],
        flops: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._kernel = kernel
        self._flops = flops
        self._clock = clock
        self._times_s: list[float] = []
        # With a single time the machine could not be recognised as slow.
        for _ in range(_FIRST_SAMPLES):
            self._timed_s()

    @property
    def floor_s(self) -> float:
        return self._times_s[0]

    @property
    def good_s(self) -> float:
        usual_s = self._times_s[int(_GOOD_TIMES * len(self._times_s))]
        return min(usual_s, _MOST_OVER_FLOOR * self.floor_s)

    def measure(self, attempt: Callable[[], Attempt]) -> Measured:
        """Measure a candidate, again while the machine is slow, and keep the fastest attempt.

        Parameters
        ----------
        attempt : callable
            Measures the candidate once.
        """
        before_s = self._timed_s()
        best_s = float("inf")
        kept: list[float] = []
        repeats, first_end_s = 0, None
        while True:
            attempt_began_s = self._clock()
            run_s, dropped = attempt()
            after_s = self._timed_s()
            now_s = self._clock()
            first_end_s = now_s if first_end_s is None else first_end_s
            median_s = statistics.median(run_s)
            if median_s < best_s:
                best_s, kept = median_s, run_s
            steady = max(before_s, after_s) <= _SLOW_RATIO * self.good_s
            # Another attempt takes about as long as this one.
            extra_s = now_s - first_end_s + now_s - attempt_began_s
            if dropped or steady or repeats == _MOST_REPEATS or extra_s > _MOST_EXTRA_S:
                return Measured(kept, repeats, self._flops / self.floor_s)
            repeats += 1
            before_s = after_s

    def _timed_s(self) -> float:
        taken_s = self._kernel()
        bisect.insort(self._times_s, taken_s)
        return taken_s
