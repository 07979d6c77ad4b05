"""A quiet machine for measurements: waiting for it, measuring again, telling what disturbed."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence

from fewtune.artifacts import LatencyStats
from fewtune.machine.host import Neighbours
from fewtune.util.table import number

# Cores taken by others from which on a round is disturbed. Linux counts time in ticks of 10 ms and
# a round takes some 0.3 s, so that less is not told from none.
BUSY_CORES = 0.25
_WINDOW_S = 0.5


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

    def __init__(self, threads: int, wait_s: float, meter: Neighbours | None = None) -> None:
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


# A median of rounds hardly moves while fewer of them are disturbed.
_MOST_ROUNDS = 0.2
# Quiet machines stay below 0.1.
_MOST_NOISE = 0.2


def disturbance(
    quiets: Sequence[Quiet], latency: LatencyStats, kernels_ms: float | None = None
) -> str:
    """In one sentence what disturbed a latency; empty if nothing did.

    Parameters
    ----------
    quiets : sequence of Quiet
        Of the processes that measured it.
    latency : LatencyStats
    kernels_ms : float, optional
        The sum of the model's kernels, if it was measured.
    """
    rounds = sum(each.rounds for each in quiets)
    taken_cores = [cores for each in quiets for cores in each.taken_cores]
    parts = []
    if len(taken_cores) > _MOST_ROUNDS * rounds:
        parts.append(
            f"other processes and the host took {statistics.mean(taken_cores):.1f} of "
            f"{len(os.sched_getaffinity(0))} cores in {len(taken_cores)} of {rounds} rounds"
        )
    if latency.noise > _MOST_NOISE:
        parts.append(f"rounds differ by {100 * latency.noise:.0f} % from the median")
    if not parts:
        return ""
    fastest = f"the fastest round took {number(latency.min_ms)} ms"
    if kernels_ms:
        fastest += f", the kernels {number(kernels_ms)} ms in sum"
    return "; ".join([*parts, fastest])


def waiting_remark(quiets: Sequence[Quiet]) -> list[str]:
    """What was spent on a quiet machine, as a remark, if anything was."""
    waited_s = sum(each.waited_s for each in quiets)
    if not waited_s:
        return []
    repeated = sum(each.repeated for each in quiets)
    return [
        f"{waited_s:.0f} s were spent on waiting for a quiet machine (rounds measured again: "
        f"{repeated})"
    ]
