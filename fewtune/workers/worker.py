"""A long-lived process that builds candidates and measures them in place.

Stock MetaSchedule starts a process pool for each batch, writes every candidate to an archive and
links it before it can run. This worker compiles a candidate with TVM's in-memory linker and runs it
in the same process, so no process is started and no file is written for it. If the process is lost
(a crash, a hang, memory), only its candidate is lost: the parent, `fewtune.workers.pool`, starts
another.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import psutil

from fewtune.runtime.kernel_store import KernelStore
from fewtune.runtime.target import has_own_device, target_from_json, tvm_device
from fewtune.runtime.tvm import build, module_of, set_threads, tvm, without_checks
from fewtune.schedule.defaults import default_schedule
from fewtune.schedule.prefetch import prefetched
from fewtune.schedule_check.check import Checker, ScheduleCheck, Verdict
from fewtune.storage.database import replay
from fewtune.task.weight_layout import PREPROC, free_places, without_layout_block
from fewtune.timing.timer import BuiltKernel, Measured, Race, Specs, Timer
from fewtune.trial.trial import Trial


def as_in_model(module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """A scheduled module as in the compiled library: weights laid out and prefetched."""
    return prefetched(without_layout_block(module), target)


def argument_shapes(function: tvm.tirx.PrimFunc) -> list[tuple[int, ...]]:
    """Shapes of a function's buffers, once its weights are laid out."""
    return [tuple(int(extent) for extent in buffer.shape) for buffer in function.params]


class Candidate(NamedTuple):
    """A kernel to be compiled: its unscheduled module as TVM JSON, and a trial's key, or None."""

    module: str
    key: str | None

    def scheduled(self, target: tvm.target.Target) -> tvm.IRModule:
        """The module with the trial's schedule; without a trial, with its default schedule."""
        module = module_of(self.module)
        if self.key is not None:
            return replay(module, Trial(self.key, None, None), target).mod
        schedule = default_schedule(module, target)
        return module if schedule is None else schedule.mod


class Made(NamedTuple):
    """A kernel that was made ready.

    Attributes
    ----------
    object : Path or None
        Its code, where it is kept (`fewtune.runtime.kernel_store`).
    shapes : list of tuple of int
        Shapes of its buffers, with weights laid out as it reads them.
    fault : str
        What is wrong with its outputs; empty if they are right, or were not looked at.
    """

    object: Path | None
    shapes: list[tuple[int, ...]]
    fault: str = ""


class KernelMaker:
    """Builds scheduled kernels, compares their outputs, and keeps those that are right.

    Parameters
    ----------
    target : Target
        Of this machine's CPU.
    checker : Checker
    """

    def __init__(self, target: tvm.target.Target, checker: Checker) -> None:
        self._target, self._checker = target, checker
        self._store = KernelStore.of(target)

    def make(self, scheduled: tvm.IRModule, wanted: ScheduleCheck | None) -> Made:
        """Make a kernel ready; without what it has to compute, it is known to be right."""
        module = as_in_model(scheduled, self._target)
        function = module["main"]
        shapes = argument_shapes(function)
        if wanted is None:
            return Made(self._store.keep(function) if self._store else None, shapes)

        def fault_of(code: Any) -> str:
            return self._checker.check(code, shapes, scheduled, wanted).fault

        if self._store:
            path, fault = self._store.keep_right(function, fault_of)
            return Made(path, shapes, fault)
        with without_checks():
            return Made(None, shapes, fault_of(build(module, self._target)))


if TYPE_CHECKING:
    from fewtune.workers.model_runner import ContenderSamples

# How often a thread of TVM's pool looks for work before it sleeps, here for some milliseconds:
# longer than from one measured call to the next. TVM's own 300,000 are a tenth of a second, in
# which the other worker builds or measures on the same core.
_SPINS = "20000"


class Worker:
    """State of one worker: built candidates by number, their timer, a model if loaded."""

    def __init__(self, target_json: str, threads: int, memory_limit_bytes: int) -> None:
        if memory_limit_bytes:
            # A candidate that needs absurd memory gets an allocation error.
            resource.setrlimit(resource.RLIMIT_DATA, (memory_limit_bytes, memory_limit_bytes))
        os.environ["TVM_NUM_THREADS"] = str(threads)
        os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", _SPINS)
        self._target, self._threads = target_from_json(target_json), threads
        self.timer = Timer(self._target, threads)
        self._built: dict[int, BuiltKernel] = {}
        # Only for candidates with another layout of weights, which a check reads from it.
        self._scheduled: dict[int, tvm.IRModule | str] = {}
        self._checker: Checker | None = None
        self._model: Any = None
        self._maker: KernelMaker | None = None

    def get_ready(self) -> None:
        """Do before the first request what the first measurement would have to wait for."""
        # What does not compile is reported when it is needed.
        with contextlib.suppress(Exception):
            self.timer.get_ready()

    def build(self, number: int, module_json: str) -> float:
        """Compile candidate ``number``; return the seconds it took."""
        started = time.perf_counter()
        scheduled = module_of(module_json)
        module = as_in_model(scheduled, self._target)
        with without_checks():
            built = build(module, self._target)
        # Looking the function up makes the linker finish now, not inside the measurement.
        built["main"]
        shapes = argument_shapes(module["main"])
        self._built[number] = BuiltKernel(built, shapes, free_places(module["main"]))
        if PREPROC in module_json:
            self._scheduled[number] = scheduled
        return time.perf_counter() - started

    def measure(self, number: int, specs: Specs, race: Race) -> Measured:
        """Race candidate ``number``; see `Timer.race`."""
        if self._maker is not None:
            self._maker = None
            set_threads(self._threads)
        with self._alive():
            return self.timer.race(self._kernel(number), specs, race)

    def check(self, number: int, wanted: ScheduleCheck) -> Verdict:
        """Compare what candidate ``number`` computes with its task; see `Checker.check`."""
        with self._alive():
            built, scheduled = self._kernel(number), self._scheduled.get(number)
            return self._own_checker().check(built.code, built.shapes, scheduled, wanted)

    def _kernel(self, number: int) -> BuiltKernel:
        return self._built[number]

    def _own_checker(self) -> Checker:
        if self._checker is None:
            borrow = None if has_own_device(self._target) else self.timer.buffers.borrow
            self._checker = Checker(self._target, borrow=borrow)
        return self._checker

    @contextlib.contextmanager
    def _alive(self) -> Iterator[None]:
        """End this process if a candidate has broken its access to the GPU.

        After a fault such as an illegal address, every later call in the process fails too, and
        other candidates would be blamed.
        """
        try:
            yield
        except Exception:
            if has_own_device(self._target) and not is_usable(tvm_device(self._target)):
                os._exit(1)
            raise

    def make(self, candidate: Any, wanted: ScheduleCheck | None) -> Any:
        """Get a kernel ready for a model (`fewtune.workers.worker.KernelMaker`)."""
        if self._maker is None:
            self._maker = KernelMaker(self._target, self._own_checker())
            # The other workers check on the other cores.
            set_threads(1)
        with self._alive():
            return self._maker.make(candidate.scheduled(self._target), wanted)

    def load_model(
        self, skeleton_json: str, library: str, contenders: dict[str, list[Any]]
    ) -> None:
        """Get a model ready to run with contenders; see `fewtune.workers.model_runner`."""
        from fewtune.artifacts import Skeleton
        from fewtune.workers.model_runner import ModelRun

        skeleton = Skeleton.model_validate_json(skeleton_json)
        self._model = ModelRun(skeleton, library, contenders, self._target)

    def run_model(self) -> ContenderSamples:
        """Measure the contenders in the model that was loaded (`ModelRun.measure`)."""
        return self._model.measure()

    def forget(self) -> int:
        """Drop a loaded model and all builds; forget the task.

        Returns the memory that this process holds, without what is kept from task to task.
        """
        self._model = None
        self._built.clear()
        self._scheduled.clear()
        self.timer.buffers.forget()
        held_bytes = self.timer.buffers.held_bytes
        if self._checker is not None:
            held_bytes += self._checker.held_bytes
        return psutil.Process().memory_info().rss - held_bytes


def is_usable(device: Any) -> bool:
    """Whether a device still answers in this process."""
    try:
        tvm.runtime.tensor(np.zeros(1, "float32"), device).numpy()
        device.sync()
    except Exception:  # noqa: BLE001 (any exception means that it does not answer)
        return False
    return True
