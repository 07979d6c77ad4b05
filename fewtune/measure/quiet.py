"""A quiet machine for measurements: waiting for it, and measuring disturbed rounds again."""

from __future__ import annotations

import time
from typing import Protocol

from fewtune.machine.host import Neighbours

# Cores taken by others from which on a round is disturbed. Linux counts time in ticks of 10 ms and
# a round takes some 0.3 s, so that less is not told from none.
BUSY_CORES = 0.25
_WINDOW_S = 0.5


class Meter(Protocol):
    """What `fewtune.machine.host.Neighbours` measures."""

    def taken_cores(self) -> float:
        """Cores that others took since the last call."""


class Quiet:
    """Tells disturbed rounds from quiet ones; both waiting and repeating end after ``wait_s``.

    Parameters
    ----------
    threads : int
        Of this process, while it measures.
    wait_s : float
        Seconds to spend on waiting for a quiet machine, and on rounds that are measured again.

    Attributes
    ----------
    waited_s : float
        Seconds spent so.
    repeated : int
        Rounds that were measured again.
    taken_cores : list of float
        For each round that stayed disturbed, the cores that others took.
    rounds : int
        Rounds that stayed, disturbed or not.
    """

    def __init__(self, threads: int, wait_s: float, meter: Meter | None = None) -> None:
        self._meter = meter or Neighbours(threads)
        self._wait_s = wait_s
        self.waited_s, self.repeated, self.rounds = 0.0, 0, 0
        self.taken_cores: list[float] = []
        self._began_s = time.perf_counter()

    def _wait(self) -> None:
        """Wait until the machine was quiet for half a second."""
        while self.waited_s < self._wait_s:
            time.sleep(_WINDOW_S)
            self.waited_s += _WINDOW_S
            if self._meter.taken_cores() <= BUSY_CORES:
                break

    def begin(self) -> None:
        """Note that a round begins."""
        self._meter.taken_cores()
        self._began_s = time.perf_counter()

    def again(self) -> bool:
        """Whether the round that now ends is to be measured again; the next one begins."""
        taken_cores = self._meter.taken_cores()
        if taken_cores > BUSY_CORES and self.waited_s < self._wait_s:
            self.waited_s += time.perf_counter() - self._began_s
            self.repeated += 1
            self._wait()
            self.begin()
            return True
        self.rounds += 1
        if taken_cores > BUSY_CORES:
            self.taken_cores.append(taken_cores)
        self.begin()
        return False
