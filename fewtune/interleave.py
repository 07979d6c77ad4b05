"""Latencies of several variants of a model, measured in turns in one process.

Two figures measured at different times differ by what the machine did meanwhile. Here every round
runs each variant once, in an order that turns, and ratios are taken round by round, so that drift
meets all variants alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from fewtune.artifacts import LatencyStats, RatioStats

# onnxruntime's and TVM's threads spin for a while after a call; the next variant waits it out.
_SETTLE_S = 0.02
_CALLS_S = 0.05
# After a rest both threads of a pool may wake on one core and take turns there, four times as slow
# as they are, until the kernel parts them: seen with onnxruntime, whose waiting threads spin.
_WARM_UP_S = 0.1
_SLOW_S = 0.5
_SLOW_ROUNDS = 3
_VERY_SLOW_S = 5.0


def interleave(
    variants: dict[str, Callable[[], object]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
    for_scale: frozenset[str] = frozenset(),
) -> dict[str, list[float]]:
    """Measure variants in turns.

    Parameters
    ----------
    variants : dict of callable
        Each runs the model once and returns when it is done.
    rounds : int
    clock : callable
        Monotonic seconds.
    for_scale : frozenset of str
        Variants that nothing is compared with closely: one that takes over half a second a call
        is left out after three rounds, one that takes over five is run just once, before them.

    Returns
    -------
    samples_s : dict of list of float
        Seconds of one call, a sample a round: the median of the calls of that round.
    """
    calls, warming, turns = {}, {}, {}
    samples: dict[str, list[float]] = {name: [] for name in variants}
    for name, run in variants.items():
        began = clock()
        run()
        first_s = clock() - began
        if name in for_scale and first_s > _VERY_SLOW_S:
            samples[name], turns[name] = [first_s], 0
            continue
        began = clock()
        run()
        once_s = clock() - began
        calls[name] = max(1, min(50, round(_CALLS_S / max(once_s, 1e-6))))
        warming[name] = max(1, min(200, round(_WARM_UP_S / max(once_s, 1e-6))))
        turns[name] = rounds
        if once_s > _SLOW_S:
            calls[name], warming[name] = 1, 0
            if name in for_scale:
                turns[name] = min(rounds, _SLOW_ROUNDS)
    names = list(variants)
    for index in range(rounds):
        turned = names[index % len(names) :] + names[: index % len(names)]
        for name in turned:
            if index >= turns[name]:
                continue
            time.sleep(_SETTLE_S)
            run = variants[name]
            for _ in range(warming[name]):
                run()
            taken = []
            for _ in range(calls[name]):
                began = clock()
                run()
                taken.append(clock() - began)
            samples[name].append(statistics.median(taken))
    return samples


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


def ratio_stats(slower_s: list[float], faster_s: list[float]) -> RatioStats:
    """How many times faster the second is, round by round over the rounds both were in."""
    shared = min(len(slower_s), len(faster_s))
    ratios = np.asarray(slower_s[:shared]) / np.asarray(faster_s[:shared])
    low, middle, high = np.percentile(ratios, [10, 50, 90])
    return RatioStats(median=float(middle), p10=float(low), p90=float(high))


def achieved_pct(baseline_s: list[float], variant_s: list[float]) -> dict[str, float]:
    """Performance of a variant over a baseline's, per cent, by the names that results use."""
    achieved = ratio_stats(baseline_s, variant_s)
    return {
        "achieved_perf_pct": 100 * achieved.median,
        "achieved_perf_p10_pct": 100 * achieved.p10,
        "achieved_perf_p90_pct": 100 * achieved.p90,
    }
