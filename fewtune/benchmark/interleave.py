"""Latencies of several variants of a model, measured in turns in one process.

Times measured at different moments differ, since the machine's speed changes. Here every round runs
every variant, in a rotating order, and ratios are taken round by round, so that drift affects all
variants alike. Variants that are compared closely, and share their threads, take several short
turns each round. On a shared host the speed of the machine changes many times a second; with short
turns the ratio has less than half the spread that it has with one turn a round.

How fast a library reads its weights depends on their addresses in memory: copies of one library, in
one process, differ by up to 1.7 % for as long as they live. So a variant may have several copies,
which take turns by rounds.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from fewtune.artifacts import LatencyStats, Spread
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

    @property
    def remark(self) -> str:
        """What was spent on a quiet machine, if anything was."""
        if not self.waited_s:
            return ""
        return (
            f"{self.waited_s:.0f} s were spent on waiting for a quiet machine (rounds measured "
            f"again: {self.repeated})"
        )

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


# onnxruntime's and TVM's threads spin for a while after a call; the next variant waits so long.
_SETTLE_S = 0.02
# Seconds and the most calls: of a variant that is measured alone; then of its unmeasured calls.
# After a rest both threads of a pool may wake on one core and run there four times as slow, until
# the operating system separates them: seen with onnxruntime, whose waiting threads spin.
_CALLS, _WARM_UP = (0.05, 50), (0.1, 200)
_SLOW_S = 0.5
_SCALE_ROUNDS = 6
# The same of a turn of a variant that shares its threads, or is not compared closely. A small model
# has its weights and buffers in the cache again only after several calls: SqueezeNet took 3.3, 3.1,
# 3.0 ms and, from the tenth call on, 2.75 (a Xeon whose last cache keeps what the second one
# evicts). ResNet 50 is as fast from the second call on.
_TURN, _TURN_WARM_UP = (0.02, 50), (0.03, 20)
# Seconds of all turns of a round.
_TURNS_S = 0.5
_LEAST_TURNS, _MOST_TURNS = 2, 8
# The spread of fewer rounds is not known.
_LEAST_KNOWN_ROUNDS = 6
# For a normal distribution: standard deviation over median absolute deviation, and standard error
# of the median over that of the mean.
_DEVIATION, _OF_MEDIAN = 1.4826, 1.2533

Clock = Callable[[], float]
Run = Callable[[], object]
Samples = dict[str, list[float]]
Item = TypeVar("Item")


@dataclass(frozen=True)
class _Variant:
    """One variant: its copies, seconds of a call, its rounds, and how it is measured."""

    copies: Sequence[Run]
    call_s: float
    rounds: int
    is_close: bool = True

    def fitting(self, time_s: float, most: int) -> int:
        """Calls that take so long, at least one."""
        return max(1, min(most, round(time_s / max(self.call_s, 1e-6))))


def interleave(  # noqa: PLR0913 (how each variant is measured)
    variants: Mapping[str, Run | Sequence[Run]],
    rounds: int,
    clock: Clock = time.perf_counter,
    for_scale: frozenset[str] = frozenset(),
    together: frozenset[str] = frozenset(),
    known_within: float | None = None,
    quiet: Quiet | None = None,
) -> Samples:
    """Measure variants in turns.

    Parameters
    ----------
    variants : dict of callable, or of sequence of callable
        Each runs the model once and returns when it is done; several are copies of one variant.
    rounds : int
    clock : callable
        Monotonic seconds.
    for_scale : frozenset of str
        Variants that are not compared closely: measured for a short turn a round, left out after
        six rounds. One that takes over half a second is run just once, before them.
    together : frozenset of str
        Variants that share their threads. In every round they take several short turns. A turn
        begins with unmeasured calls, which bring the variant's weights back into the cache.
    known_within : float, optional
        End before ``rounds`` when the relative standard error of every median, from the rounds'
        spread, is at most this, and each copy has been measured twice.
    quiet : Quiet, optional
        Says which rounds were disturbed, to be measured again.

    Returns
    -------
    samples_s : dict of list of float
        Seconds of one call, a sample a round: the median of the calls of that round.
    """
    ready: dict[str, _Variant] = {}
    samples: Samples = {name: [] for name in variants}
    for name, runs in variants.items():
        copies = [runs] if callable(runs) else list(runs)
        (first_s,) = _timed(copies[0], 1, clock)
        if name in for_scale and first_s > _SLOW_S:
            samples[name] = [first_s]
            ready[name] = _Variant(copies, first_s, rounds=0)
            continue
        # The first call is slower: it touches memory for the first time.
        for copy in copies[1:]:
            copy()
        (once_s,) = _timed(copies[0], 1, clock)
        own = min(rounds, _SCALE_ROUNDS) if name in for_scale else rounds
        ready[name] = _Variant(copies, once_s, own, name not in for_scale)
    alone = [[name] for name in variants if name not in together]
    close = [name for name in variants if name in together]
    groups = [*alone, close] if close else alone
    judged = [name for name in variants if name not in for_scale]
    most_copies = max((len(ready[name].copies) for name in judged), default=1)
    if quiet is not None:
        quiet.begin()
    for index in range(rounds):
        taken = _every_group(groups, ready, index, clock)
        while quiet is not None and quiet.again():
            taken = _every_group(groups, ready, index, clock)
        for name, taken_s in taken.items():
            samples[name].append(taken_s)
        if (
            known_within is not None
            and index + 1 >= max(_LEAST_KNOWN_ROUNDS, 2 * most_copies)
            and all(median_error(samples[name]) <= known_within for name in judged)
        ):
            break
    return samples


def _every_group(
    groups: Sequence[list[str]], ready: dict[str, _Variant], index: int, clock: Clock
) -> dict[str, float]:
    """One round: the median of each variant that is due in it."""
    medians_s: dict[str, float] = {}
    for group in turned(groups, index):
        due = {name: ready[name] for name in group if index < ready[name].rounds}
        if due:
            taken = _round(due, index, clock)
            medians_s |= {name: statistics.median(calls_s) for name, calls_s in taken.items()}
    return medians_s


def median_error(samples_s: Sequence[float]) -> float:
    """Relative standard error of the samples' median.

    The spread is the median absolute deviation, which a few disturbed rounds do not widen.
    """
    values = np.asarray(samples_s)
    middle = float(np.median(values))
    deviation = _DEVIATION * float(np.median(np.abs(values - middle)))
    return _OF_MEDIAN * deviation / math.sqrt(len(values)) / middle if middle else 0.0


def _round(group: dict[str, _Variant], index: int, clock: Clock) -> Samples:
    """The calls of one round of variants that share their threads, or of one variant."""
    names = turned(list(group), index)
    runs = {name: copy_of(group[name].copies, index, len(names)) for name in names}
    first = group[names[0]]
    calls, warm_up = (_CALLS, _WARM_UP) if first.is_close else (_TURN, _TURN_WARM_UP)
    time.sleep(_SETTLE_S)
    for _ in range(first.fitting(*warm_up) if first.call_s <= _SLOW_S else 0):
        runs[names[0]]()
    if len(names) == 1:
        return {names[0]: _timed(runs[names[0]], first.fitting(*calls), clock)}
    taken: Samples = {name: [] for name in names}
    turns_s = sum(
        each.call_s * (each.fitting(*_TURN_WARM_UP) + each.fitting(*_TURN))
        for each in group.values()
    )
    fitting = round(_TURNS_S / max(turns_s, 1e-6))
    for turn in range(max(_LEAST_TURNS, min(_MOST_TURNS, fitting))):
        for name in turned(names, turn):
            for _ in range(group[name].fitting(*_TURN_WARM_UP)):
                runs[name]()
            taken[name] += _timed(runs[name], group[name].fitting(*_TURN), clock)
    return taken


def _timed(run: Run, calls: int, clock: Clock) -> list[float]:
    """Seconds of each of some calls in a row."""
    taken = []
    for _ in range(calls):
        began = clock()
        run()
        taken.append(clock() - began)
    return taken


def copy_of(copies: Sequence[Item], index: int, variants: int) -> Item:
    """The copy of a round: the next copy is used after each variant has been first once."""
    return copies[index // variants % len(copies)]


def turned(items: Sequence[Item], index: int) -> list[Item]:
    """The items, rotated by the index."""
    start = index % len(items)
    return [*items[start:], *items[:start]]


def latency_stats(samples_s: list[float]) -> LatencyStats:
    """Summarise samples in seconds as latencies in milliseconds."""
    ms = np.asarray(samples_s) * 1e3
    low, middle, high = np.percentile(ms, [10, 50, 90])
    return LatencyStats(
        median_ms=float(middle),
        p10_ms=float(low),
        p90_ms=float(high),
        min_ms=float(ms.min()),
        rounds=len(samples_s),
    )


def ratio_stats(slower_s: list[float], faster_s: list[float]) -> Spread:
    """How many times faster the second is, by the rounds that both were in."""
    shared = min(len(slower_s), len(faster_s))
    ratios = np.asarray(slower_s[:shared]) / np.asarray(faster_s[:shared])
    low, middle, high = np.percentile(ratios, [10, 50, 90])
    return Spread(median=float(middle), p10=float(low), p90=float(high))


def ratio_if_measured(samples_s: Samples, slower: str, faster: str) -> Spread | None:
    """`ratio_stats` of two variants; None where one of them was not measured."""
    if not samples_s.get(slower) or not samples_s.get(faster):
        return None
    return ratio_stats(samples_s[slower], samples_s[faster])


def achieved_pct(baseline_s: list[float], variant_s: list[float]) -> dict[str, float]:
    """Performance of a variant over a baseline's, per cent, by the names that results use."""
    achieved = ratio_stats(baseline_s, variant_s)
    return {
        "achieved_perf_pct": 100 * achieved.median,
        "achieved_perf_p10_pct": 100 * achieved.p10,
        "achieved_perf_p90_pct": 100 * achieved.p90,
    }
