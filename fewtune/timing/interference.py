"""How much a kernel slows down the kernels called after it: part of its speed in a model.

A schedule may split another axis among the threads than the next kernel. Half of what that kernel
reads, or writes, is then in the other core's cache. The schedule's own time does not show it:
SqueezeNet's classifier took 0.786 ms split along the filters and 0.825 along the rows, but the
kernel that adds its bias took 0.114 and 0.048 ms after it. The scaling of 14x14 planes in DenseNet
121 took 0.016 ms in one library and 0.159 in another under the same schedule (an EPYC). So rounds
add to a contender's time what the next kernels on its memory take beyond their usual time, unless
that may be noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

# For a normal distribution: standard deviation over median absolute deviation, and standard error
# of the median over that of the mean.
_DEVIATION, _OF_MEDIAN = 1.4826, 1.2533
# Differences within so many standard errors may be noise.
_CHANCE = 2.0

# What calls after it gain by a kernel leaves this part of its own time.
_LEAST_OWN = 0.1

# By workload and contender: seconds of all its calls in one run, one value for each run.
ContenderSamples = dict[str, list[list[float]]]


def charged(
    times_s: np.ndarray,
    workloads: Sequence[str],
    picked: Sequence[dict[str, int]],
    after: Sequence[Iterable[int]],
) -> ContenderSamples:
    """Samples of each contender: its own seconds, and the slowdown of the calls after it.

    Parameters
    ----------
    times_s : ndarray, (runs, calls)
        Seconds of every call of every run of the model.
    workloads : sequence of str
        By call, its kernel's workload.
    picked : sequence of dict of int
        By run, the contender of each workload that was used.
    after : sequence of iterable of int
        By call, the calls that it may slow down: its `followers`.

    Returns
    -------
    samples : dict of list of list of float
        By workload and contender: seconds of all its calls in one run, one value for each run.
    """
    places: dict[str, list[int]] = {}
    for place, name in enumerate(workloads):
        places.setdefault(name, []).append(place)
    stood = {name: np.array([run[name] for run in picked]) for name in places}
    beyond_s = times_s - _usual(times_s, workloads, stood)
    samples: ContenderSamples = {}
    for name, own in places.items():
        own_s = times_s[:, own].sum(axis=1)
        contenders = range(int(stood[name].max()) + 1)
        charges_s = [0.0 for _ in contenders]
        if len(contenders) > 1:
            for calls in _by_workload(workloads, own, after):
                excess_s = beyond_s[:, calls].sum(axis=1)
                for each in contenders:
                    charges_s[each] += _beyond_chance(excess_s[stood[name] == each])
        samples[name] = [
            [
                max(float(time_s) + charges_s[each], _LEAST_OWN * float(time_s))
                for time_s in own_s[stood[name] == each]
            ]
            for each in contenders
        ]
    return samples


def _usual(
    times_s: np.ndarray, workloads: Sequence[str], stood: dict[str, np.ndarray]
) -> np.ndarray:
    """The usual time of each call with the contender that is used there, (runs, calls)."""
    usual_s = np.empty_like(times_s)
    for place, name in enumerate(workloads):
        for each in np.unique(stood[name]):
            runs = stood[name] == each
            usual_s[runs, place] = np.median(times_s[runs, place])
    return usual_s


def _by_workload(
    workloads: Sequence[str], own: Sequence[int], after: Sequence[Iterable[int]]
) -> list[list[int]]:
    """The calls after some calls, grouped by kernel, without calls of their own kernel."""
    found: dict[str, set[int]] = {}
    for place in own:
        for follower in after[place]:
            if workloads[follower] != workloads[place]:
                found.setdefault(workloads[follower], set()).add(follower)
    return [sorted(found[name]) for name in sorted(found)]


def _beyond_chance(excess_s: np.ndarray) -> float:
    """The median of some values, less the part that may be noise."""
    middle_s = float(np.median(excess_s))
    deviation_s = _DEVIATION * float(np.median(np.abs(excess_s - middle_s)))
    chance_s = _CHANCE * _OF_MEDIAN * deviation_s / math.sqrt(len(excess_s))
    return math.copysign(max(0.0, abs(middle_s) - chance_s), middle_s)


def followers(touched: Sequence[tuple[list[int], list[int]]]) -> list[list[int]]:
    """The calls that find memory in the caches where a call left it.

    Parameters
    ----------
    touched : sequence of (list of int, list of int)
        By call, addresses of what it reads and of what it writes.

    Returns
    -------
    after : list of list of int
        By call: for all memory that it touches, the next calls that read it, up to and including
        the first one that writes it.
    """
    after: list[set[int]] = [set() for _ in touched]
    open_to: dict[int, set[int]] = {}
    for place, (read, written) in enumerate(touched):
        for address in {*read, *written}:
            for earlier in open_to.get(address, ()):
                after[earlier].add(place)
        for address in read:
            open_to.setdefault(address, set()).add(place)
        for address in written:
            open_to[address] = {place}
    return [sorted(each - {place}) for place, each in enumerate(after)]
