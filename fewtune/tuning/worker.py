"""A process that lives on, builds candidates and measures them in place.

Stock MetaSchedule starts a process pool a batch, writes every candidate to an archive and links
it before it can run. This worker compiles a candidate with TVM's in-memory linker and runs it in
the same process, so building and the first measurement share one start-up and no file is written.
One process can be lost (a crash, a hang, memory) without losing anything but its candidate: the
parent, `fewtune.tuning.pool`, starts another.

The protocol is a sequence of (request, reply) tuples over a socket that only the parent holds;
the worker ends when the socket closes, so it never outlives its parent.
"""

from __future__ import annotations

import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fewtune.affinity import apart_from_the_pool
from fewtune.tuning.caches import (
    CacheState,
    last_level_cache_bytes,
    own_cache_bytes,
    to_be_flushed,
    to_be_rewritten,
)
from fewtune.tuning.calibration import Attempt, Calibration, Measured
from fewtune.tuning.cold import weight_places
from fewtune.tuning.rewrite import parted_axis, sliced

# Numbers that are drawn to fill a buffer, and repeated.
_FILLED_AT_ONCE = 2**16
# Single calls that make up one sample where the caches are prepared before each.
_MOST_SINGLE_CALLS = 8
# The fastest of these counts: one may wait for a thread that was asleep, another for an interrupt.
_CALIBRATION_CALLS = 4


class Race(NamedTuple):
    """How long a candidate is measured, given the best so far.

    A candidate is run once; it goes on to the short measurement only if it can still win, and to
    the full one only if the short one says so. Times are seconds. With ``cold_weights`` every call
    finds its weights in memory (`fewtune.tuning.cold`).
    """

    best_s: float | None
    drop_first_ratio: float = 3.0
    drop_short_ratio: float = 1.1
    short_s: float = 0.003
    short_repeats: int = 3
    full_s: float = 0.006
    full_repeats: int = 5
    cold_weights: bool = False


class _Built(NamedTuple):
    """A compiled candidate.

    Its code, the shapes of its buffers, which of them are weights, and the axis along which other
    kernels part the rest.
    """

    code: Any
    shapes: list[tuple[int, ...]]
    weight_places: list[int]
    parted_axis: int


class _Kernel(NamedTuple):
    """A built candidate and its arguments.

    Of these, some weights are flushed before a call, and some activations written anew.
    """

    built: Any
    arguments: list[Any]
    weights: list[Any]
    activations: list[Any]


class Worker:
    """State of one worker: built candidates by number, argument buffers by shape."""

    def __init__(self, target_json: str, threads: int, memory_limit_bytes: int) -> None:
        if memory_limit_bytes:
            # A candidate that asks for absurd memory gets an allocation error, not the machine.
            resource.setrlimit(resource.RLIMIT_DATA, (memory_limit_bytes, memory_limit_bytes))
        os.environ["TVM_NUM_THREADS"] = str(threads)
        from fewtune.machine import device_of, has_own_device, target_from_json
        from fewtune.tvm_runtime import tvm

        self._tvm = tvm
        self._target = target_from_json(target_json)
        self._device = device_of(self._target)
        self._threads = threads
        self._on_host = not has_own_device(self._target)
        self._calibration: Calibration | None = None
        self._fill = filler(on_host=self._on_host)
        self._built: dict[int, _Built] = {}
        self._caches: CacheState | None = None
        self._cache_bytes = last_level_cache_bytes()
        own_bytes = own_cache_bytes()
        self._own_caches_bytes = threads * own_bytes if own_bytes is not None else None
        self._buffers: dict[str, list[Any]] = {}
        self._model: Any = None

    def build(self, number: int, module_json: str) -> float:
        """Compile candidate ``number``; return the seconds it took."""
        from fewtune.tuning.compiling import argument_shapes, without_checks, without_rewrites
        from fewtune.tvm_runtime import build

        started = time.perf_counter()
        module = without_rewrites(self._tvm.ir.load_json(module_json))
        with without_checks():
            built = build(module, self._target)
        # Looking the function up makes the linker finish now, not inside the measurement.
        built["main"]
        shapes = argument_shapes(module["main"])
        axis = parted_axis(module_json)
        self._built[number] = _Built(built, shapes, weight_places(module), axis)
        return time.perf_counter() - started

    def measure(self, number: int, specs: list[tuple[list[int], str]], race: Race) -> Measured:
        """Race candidate ``number``; on a CPU, again while the machine is slow."""
        kernel = self._kernel(number, specs, cold=race.cold_weights)
        self._start_pool()
        with apart_from_the_pool():
            if self._calibration is not None:
                return self._calibration.measure(lambda: self._raced(kernel, race))
            started = time.perf_counter()
            run_s, _ = self._raced(kernel, race)
            return Measured(run_s, time.perf_counter() - started)

    def _start_pool(self) -> None:
        """See that TVM's pool is there to keep apart from: the first calls of a kernel start it."""
        if self._on_host and self._calibration is None:
            self._calibration = self._calibrated()

    def _calibrated(self) -> Calibration:
        """Build the calibration kernel: once a worker, when it first measures."""
        from fewtune.peak import MultiplyAdd

        kernel = MultiplyAdd(self._target, self._threads)
        return Calibration(
            lambda: min(kernel.once_s() for _ in range(_CALIBRATION_CALLS)), kernel.flops
        )

    def _raced(self, kernel: _Kernel, race: Race) -> Attempt:
        first = self._evaluate(kernel, 1, 1)
        best = race.best_s
        if best is not None and first[0] > best * race.drop_first_ratio:
            return Attempt(first, dropped=True)
        estimate = first[0]
        calls = max(1, min(1000, round(race.short_s / max(estimate, 1e-7))))
        short = self._evaluate(kernel, calls, race.short_repeats)
        estimate = sorted(short)[len(short) // 2]
        if best is not None and estimate > best * race.drop_short_ratio:
            return Attempt(short, dropped=False)
        calls = max(1, min(10000, round(race.full_s / max(estimate, 1e-7))))
        full = self._evaluate(kernel, calls, race.full_repeats)
        return Attempt(full, dropped=False)

    def duel(
        self,
        numbers: list[int],
        specs: list[tuple[list[int], str]],
        rounds: int,
        round_s: float,
        cold_weights: bool = False,
    ) -> list[list[float]]:
        """Measure built candidates in turn, ``rounds`` times, so that drift meets all alike."""
        kernels = [self._kernel(number, specs, cold=cold_weights) for number in numbers]
        self._start_pool()
        with apart_from_the_pool():
            return self._duelled(kernels, rounds, round_s)

    def _duelled(self, kernels: list[_Kernel], rounds: int, round_s: float) -> list[list[float]]:
        samples: list[list[float]] = [[] for _ in kernels]
        calls = []
        for kernel in kernels:
            (once,) = self._evaluate(kernel, 1, 1)
            calls.append(max(1, min(10000, round(round_s / max(once, 1e-7)))))
        for _ in range(rounds):
            for place, kernel in enumerate(kernels):
                samples[place].extend(self._evaluate(kernel, calls[place], 1))
        return samples

    def link(self, path: str, candidates: dict[str, Any]) -> dict[str, Any]:
        """Compile kernels into one library; see `fewtune.tuning.model_run.link`."""
        from fewtune.tuning.model_run import link

        return link(Path(path), candidates, self._target)

    def export(self, paths: dict[int, str]) -> dict[str, list[tuple[int, ...]]]:
        """Write built candidates as libraries; return by path the shapes of each one's buffers."""
        from fewtune.tuning.model_run import export

        for number, path in paths.items():
            export(self._built[number].code, Path(path))
        return {path: self._built[number].shapes for number, path in paths.items()}

    def load_model(self, skeleton_json: str, contenders: dict[str, list[Any]]) -> None:
        """Get a model ready to run with contenders; see `fewtune.tuning.model_run`."""
        from fewtune.artifacts import Skeleton
        from fewtune.tuning.model_run import ModelRun

        skeleton = Skeleton.model_validate_json(skeleton_json)
        self._model = ModelRun(skeleton, contenders, self._target)

    def run_model(self) -> dict[str, list[list[float]]]:
        """Measure the contenders in the model that was loaded."""
        return self._model.measure()

    def forget(self, kept: list[int]) -> None:
        """Drop every built candidate but those to be kept, every buffer, and a loaded model."""
        self._model = None
        self._built = {number: self._built[number] for number in kept if number in self._built}
        self._buffers.clear()

    def resident_bytes(self) -> int:
        """Memory this process holds."""
        with open("/proc/self/statm") as stream:
            return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def _kernel(self, number: int, specs: list[tuple[list[int], str]], *, cold: bool) -> _Kernel:
        """Candidate ``number`` with its arguments, weights to flush and activations to rewrite."""
        built = self._built[number]
        arguments = self._arguments(built.shapes, specs)
        if not self._on_host:
            return _Kernel(built.code, arguments, [], [])
        if self._caches is None:
            # Now, not within the time of a measurement.
            self._caches = CacheState(self._target, self._threads)
        weights = [arguments[place] for place in built.weight_places]
        activations = [a for i, a in enumerate(arguments) if i not in built.weight_places]
        rewritten = to_be_rewritten(activations, self._own_caches_bytes)
        return _Kernel(
            built.code,
            arguments,
            to_be_flushed(weights, self._cache_bytes) if cold else [],
            [sliced(each, built.parted_axis) for each in rewritten],
        )

    def _evaluate(self, kernel: _Kernel, number: int, repeat: int) -> list[float]:
        """Seconds of one call, ``repeat`` samples of ``number`` calls each."""
        if kernel.weights or kernel.activations:
            assert self._caches is not None
            times_s = self._caches.evaluate(
                kernel.built,
                self._device,
                kernel.arguments,
                kernel.weights,
                kernel.activations,
                min(number, _MOST_SINGLE_CALLS) * repeat,
            )
            return [statistics.median(times_s[i::repeat]) for i in range(repeat)]
        evaluator = kernel.built.time_evaluator("main", self._device, number=number, repeat=repeat)
        return [float(value) for value in evaluator(*kernel.arguments).results]

    def _arguments(
        self, shapes: list[tuple[int, ...]], specs: list[tuple[list[int], str]]
    ) -> list[Any]:
        """The task's buffers, weights in the layout that a candidate of ``shapes`` reads."""
        key = repr(specs)
        if key not in self._buffers:
            self._buffers.clear()
            buffers = []
            for shape, dtype in specs:
                buffer = self._tvm.runtime.empty(tuple(shape), dtype, self._device)
                self._fill(buffer)
                buffers.append(buffer)
            self._buffers[key] = buffers
        views = []
        for buffer, shape in zip(self._buffers[key], shapes, strict=True):
            views.append(buffer if tuple(buffer.shape) == shape else buffer._create_view(shape))
        return views


def filler(*, on_host: bool) -> Callable[[Any], None]:
    """What fills a buffer with random numbers.

    TVM's own function draws each of them, and buffers are filled in every worker and whenever
    another task comes: 0.66 s each time for the 411 MB of VGG's classifier. On the host one block
    of them is repeated: 0.28 s, most of it for memory that is touched for the first time.
    """
    from fewtune.tvm_runtime import fill_repeating, tvm

    by_tvm = tvm.get_global_func("tvm.contrib.random.random_fill_for_measure")
    block = np.random.default_rng(0).random(_FILLED_AT_ONCE, dtype="float32")

    def fill(buffer: Any) -> None:
        if on_host and str(buffer.dtype) == "float32":
            fill_repeating(buffer, block)
        else:
            by_tvm(buffer)

    return fill


def serve(connection: Connection) -> None:
    """Answer requests until the parent closes the socket."""
    _, *settings = connection.recv()
    worker = Worker(*settings)
    connection.send(("ready", os.getpid()))
    while True:
        try:
            verb, *arguments = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        try:
            reply = ("ok", getattr(worker, verb)(*arguments))
        except MemoryError:
            reply = ("failed", "out of memory")
        except Exception as fault:  # noqa: BLE001 (whatever a candidate does is its own failure)
            text = str(fault).strip() or type(fault).__name__
            reply = ("failed", text[-2000:])
        try:
            connection.send(reply)
        except BrokenPipeError:
            return


def silence() -> None:
    """Keep whatever a library prints off the terminal's live view."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if os.environ.get("FEWTUNE_WORKER_STDERR") is None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


if __name__ == "__main__":
    silence()
    serve(Connection(int(sys.argv[1])))
