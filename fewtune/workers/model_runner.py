"""A worker's side of rounds in the model: kernels timed where the model calls them.

One run of the model gives a sample of every kernel. Each run uses other contenders. Each kernel
has a random order of its own, so that no contender always has the same neighbours, and drift
affects all alike.

A schedule may split another axis among the threads than the next kernel. Half of what that kernel
reads, or writes, is then in the other core's cache. The schedule's own time does not show it:
SqueezeNet's classifier took 0.786 ms split along the filters and 0.825 along the rows, but the
kernel that adds its bias took 0.114 and 0.048 ms after it. The scaling of 14x14 planes in DenseNet
121 took 0.016 ms in one library and 0.159 in another under the same schedule (an EPYC). So what the
next kernels on its memory take beyond their usual time is added to a contender's time (`charged`),
unless that may be noise.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fewtune.artifacts import CallSite, Skeleton
from fewtune.model.call_graph import build_skeleton, site_function
from fewtune.runtime.target import tvm_device
from fewtune.runtime.tvm import fill_repeating, relax, tvm
from fewtune.tvm_compat.values import set_function, view_of
from fewtune.verify.values import random_inputs

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


_SEED = 0
# The first runs touch memory for the first time and wake TVM's threads.
_WARM_UPS = 2
# Samples of a contender: as many as fit into this time for all of them, within these bounds.
_RUNS_S = 0.9
_LEAST_SAMPLES, _MOST_SAMPLES = 3, 24
_DRAWN = 2**16


class Contender(NamedTuple):
    """A compiled kernel: its symbol in the library, and the shapes of its buffers."""

    symbol: str
    shapes: list[tuple[int, ...]]


def picks(counts: dict[str, int], runs: int, seed: int) -> Iterator[dict[str, int]]:
    """The contender of each kernel to use in each run: all in turn, in a random order."""
    generator = random.Random(seed)
    orders: dict[str, list[int]] = {}
    for run in range(runs):
        for name, count in counts.items():
            if run % count == 0:
                orders[name] = generator.sample(range(count), count)
        yield {name: orders[name][run % count] for name, count in counts.items()}


class ModelRun:
    """A model that runs with contenders in its places.

    Parameters
    ----------
    skeleton : Skeleton
    library : str
        Path of a library with all contenders, and with threads of its own as a deployed one.
    contenders : dict of list of Contender
        By workload; at least one for every workload that the skeleton calls.
    target : Target
        A CPU.
    """

    def __init__(
        self,
        skeleton: Skeleton,
        library: str,
        contenders: dict[str, list[Contender]],
        target: tvm.target.Target,
    ) -> None:
        self._contenders = contenders
        self._device = tvm_device(target)
        self._library = tvm.runtime.load_module(library)
        self._picked = dict.fromkeys(contenders, 0)
        self._spent_ns = [0] * len(skeleton.sites)
        self._workloads = [site.workload for site in skeleton.sites]
        # By call, the memory that it reads and writes; only during `_find_touched`.
        self._touched: dict[int, tuple[list[int], list[int]]] | None = None
        drawn = np.random.default_rng(_SEED).random(_DRAWN, dtype="float32")
        self._drawn = drawn - np.float32(0.5)
        for place, site in enumerate(skeleton.sites):
            called = self._called(place, site)
            set_function(site_function(place), called)
        self._machine = relax.VirtualMachine(build_skeleton(skeleton, target), self._device)
        arrays = random_inputs(skeleton.inputs, _SEED)
        self._inputs = [tvm.runtime.tensor(arrays[i.name], self._device) for i in skeleton.inputs]

    def measure(self) -> ContenderSamples:
        """Run the model until every contender has its samples.

        Returns
        -------
        samples : ContenderSamples
            With the slowdown of the calls after each contender.
        """
        touched = self._find_touched()
        latency_s = min(self._run() for _ in range(_WARM_UPS))
        most = max(len(each) for each in self._contenders.values())
        each_s = latency_s * most
        count = min(_MOST_SAMPLES, max(_LEAST_SAMPLES, math.ceil(_RUNS_S / each_s)))
        counts = {name: len(each) for name, each in self._contenders.items()}
        picked = list(picks(counts, count * most, _SEED))
        times_s = np.empty((len(picked), len(self._workloads)))
        for run, standing in enumerate(picked):
            self._picked.update(standing)
            self._run()
            times_s[run] = self._spent_ns
        return charged(times_s / 1e9, self._workloads, picked, followers(touched))

    def _find_touched(self) -> list[tuple[list[int], list[int]]]:
        """Run once to find the memory that each call reads and writes."""
        self._touched = {}
        self._run()
        touched, self._touched = self._touched, None
        return [touched.get(place, ([], [])) for place in range(len(self._workloads))]

    def _run(self) -> float:
        """Run the model once; return the seconds of the whole."""
        began_s = time.perf_counter()
        self._machine["main"](*self._inputs)
        return time.perf_counter() - began_s

    def _called(self, place: int, site: CallSite) -> Callable[..., None]:
        """The function for the skeleton to call at a site: it times the picked contender."""
        name, picked, spent_ns = site.workload, self._picked, self._spent_ns
        contenders = self._contenders[name]
        # Each contender lays the weights out in its own way, all in one memory.
        constants = {
            each: self._constant(shape, max(math.prod(one.shapes[each]) for one in contenders))
            for each, shape in site.constants.items()
        }
        ready = [
            (
                self._library[one.symbol],
                {each: view_of(memory, one.shapes[each]) for each, memory in constants.items()},
            )
            for one in contenders
        ]
        clock_ns = time.perf_counter_ns
        read = site.arguments - len(site.constants)

        def called(*given: Any) -> None:
            if self._touched is not None:
                memory = [each.data_ptr() for each in given]
                self._touched[place] = (memory[:read], memory[read:])
            function, weights = ready[picked[name]]
            rest = iter(given)
            arguments = [
                weights[each] if each in weights else next(rest) for each in range(site.arguments)
            ]
            arguments.extend(rest)
            began_ns = clock_ns()
            function(*arguments)
            spent_ns[place] = clock_ns() - began_ns

        return called

    def _constant(self, shape: list[int], elements: int) -> Any:
        """Memory for a constant of a shape, with numbers that keep activations in their range.

        The drawn numbers are repeated. The values of weights do not matter, as long as the model's
        activations become neither infinite nor so small that the processor handles them separately.
        """
        memory = tvm.runtime.empty((elements,), "float32", self._device)
        summed = math.prod(shape[:-1])
        # Uniform numbers whose variance is two over the number of products in a sum.
        scale = math.sqrt(24 / summed) if summed > 1 else 1
        fill_repeating(memory, self._drawn * np.float32(scale))
        return memory
