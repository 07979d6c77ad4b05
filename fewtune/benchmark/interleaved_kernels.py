"""The kernels of libraries of one model, timed where the model calls them, libraries in turns.

A kernel's time alone, or in another run, does not show which kernels make one library slower than
another. Times differ by some per cent from moment to moment, and in the model a kernel's data are
in other caches than when it runs alone.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from fewtune.artifacts import KernelPair
from fewtune.measure.interleave import copy_of, turned
from fewtune.runtime.executable import kernel_name

# By kernel of the lowered model: seconds of all its calls in one run, one sample for each round.
KernelSamples = dict[str, list[float]]

# A round is one unmeasured run, which brings the library's weights back into the cache, and the
# median of some measured runs. There are as many rounds as fit, within these bounds.
_RUNS = 3
_ROUNDS_S = 3.0
_LEAST_ROUNDS, _MOST_ROUNDS = 4, 24


class TimedModel(Protocol):
    """The measured model: `fewtune.runtime.executable.CompiledModel`."""

    def kernel_times_s(self) -> dict[str, float]:
        """Run once; seconds of all calls of each kernel."""


def kernels_in_turns(models: Mapping[str, Sequence[TimedModel]]) -> dict[str, KernelSamples]:
    """Time the kernels of several libraries of one model.

    Parameters
    ----------
    models : mapping of sequence of TimedModel
        By variant: copies of its library, which take turns.

    Returns
    -------
    samples_s : dict of KernelSamples
        By variant, with as many samples for each.
    """
    samples: dict[str, KernelSamples] = {name: {} for name in models}
    began = time.perf_counter()
    for copies in models.values():
        for copy in copies:
            copy.kernel_times_s()
    round_s = (1 + _RUNS) * (time.perf_counter() - began) * len(models)
    round_s /= sum(map(len, models.values()))
    rounds = max(_LEAST_ROUNDS, min(_MOST_ROUNDS, round(_ROUNDS_S / max(round_s, 1e-6))))
    for number in range(rounds):
        for name in turned(list(models), number):
            copy = copy_of(models[name], number, len(models))
            copy.kernel_times_s()
            taken = [_by_kernel(copy.kernel_times_s()) for _ in range(_RUNS)]
            for kernel in taken[0]:
                middle_s = statistics.median(each[kernel] for each in taken)
                samples[name].setdefault(kernel, []).append(middle_s)
    return samples


def _by_kernel(times_s: Mapping[str, float]) -> dict[str, float]:
    """Times by the kernels' names before weights were laid out and parts computed in place."""
    found: dict[str, float] = defaultdict(float)
    for symbol, each_s in times_s.items():
        found[kernel_name(symbol)] += each_s
    return found


def kernel_pairs(
    processes: Sequence[Mapping[str, KernelSamples]],
    tasks: Mapping[str, str],
    calls: Mapping[str, int],
) -> list[KernelPair]:
    """Compare the kernels of the selective library with those of the full one.

    Parameters
    ----------
    processes : sequence of mapping of KernelSamples
        What each process measured of ``selective`` and ``full``.
    tasks : mapping of str
        The tasks of kernels that are not named like them.
    calls : mapping of int
        Of each task in one run.

    Returns
    -------
    pairs : list of KernelPair
        A line a task that both libraries call, the one that most was lost on first.
    """
    taken_s: dict[str, dict[str, np.ndarray]] = {}
    for variant in ("selective", "full"):
        of_task: dict[str, np.ndarray] = {}
        for kernel in processes[0][variant]:
            name = tasks.get(kernel, kernel)
            rounds_s = np.concatenate([each[variant][kernel] for each in processes])
            of_task[name] = of_task[name] + rounds_s if name in of_task else rounds_s
        taken_s[variant] = of_task
    selective, full = taken_s["selective"], taken_s["full"]
    pairs = []
    for name in sorted(set(selective) & set(full) & set(calls)):
        low, middle, high = np.percentile(selective[name] - full[name], [10, 50, 90]) * 1e3
        pairs.append(
            KernelPair(
                task=name,
                calls=calls[name],
                selective_ms=1e3 * float(np.median(selective[name])) / calls[name],
                full_ms=1e3 * float(np.median(full[name])) / calls[name],
                lost_ms=float(middle),
                lost_p10_ms=float(low),
                lost_p90_ms=float(high),
            )
        )
    return sorted(pairs, key=lambda pair: (-pair.lost_ms, pair.task))
