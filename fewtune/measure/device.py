"""A device: where candidates are built and measured, and its capabilities.

A session of tuning or sharing works on any device. What a device cannot do is skipped, and the
report names it. A further kind is a subclass in a file of its own, named in `KINDS`; its function
``describe`` makes the fingerprint of `FingerprintOptions`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar, NamedTuple

from fewtune.artifacts import Fingerprint
from fewtune.machine.fingerprint import KINDS
from fewtune.measure.measurer import Measurer
from fewtune.runtime.executable import CompiledModel
from fewtune.runtime.target import has_own_device, target_from_json
from fewtune.runtime.tvm import relax
from fewtune.workers.pool import WorkerOptions, WorkerPool


class Capabilities(NamedTuple):
    """What a device can do.

    Attributes
    ----------
    shared_cores : bool
        Kernels run on the cores that build them, so building and measuring alternate. There, caches
        are put into the state that a model leaves them in before each call, and a task's fastest
        schedules are compared in the model.
    runs_here : bool
        Processes of this machine can run what is compiled for it.
    locks_itself : bool
        Its machines hold their locks while they tune and share, batch by batch.
    """

    shared_cores: bool = True
    runs_here: bool = True
    locks_itself: bool = False


class Device(ABC):
    """Where candidates are built and measured.

    Parameters
    ----------
    fingerprint : Fingerprint
        The device's own; everything measured there names it.
    """

    can: Capabilities
    # Measures batches on the processes of `open`.
    measurer_kind: ClassVar[type[Measurer]] = Measurer
    # Carries out the work of tuning and sharing; None for a child process of this machine.
    runner: ClassVar[Callable[..., list[dict[str, Any]]] | None] = None

    def __init__(self, fingerprint: Fingerprint) -> None:
        self.fingerprint = fingerprint
        self.target = target_from_json(fingerprint.target)

    @property
    def lock(self) -> str:
        """The name of the lock that is held while it measures (`device_lock`), such as ``cpu``."""
        return f"{self.target.kind.name}-0" if has_own_device(self.target) else "cpu"

    @abstractmethod
    def open(self) -> WorkerPool:
        """Processes that build and measure; the caller closes them."""

    def measurer(self, pool: WorkerPool) -> Measurer:
        """The measurer of batches on these processes."""
        return self.measurer_kind(pool, overlap=not self.can.shared_cores)

    @property
    def link(self) -> Callable[..., None] | None:
        """Links libraries for it, as TVM's ``fcompile``; None for this machine's compiler."""
        return None

    def load(self, executable: relax.VMExecutable | Path) -> CompiledModel:
        """A compiled model, ready to run there.

        Parameters
        ----------
        executable : relax.VMExecutable or Path
            As built, or the path of a library that `link` linked.
        """
        return CompiledModel(executable, self.target)

    def clock_s(self) -> float:
        """Seconds by the clock of what runs its models."""
        return time.perf_counter()


class Here(Device):
    """The CPU of this machine: workers build in parallel and measure one at a time."""

    can = Capabilities()

    def open(self) -> WorkerPool:
        threads = self.fingerprint.threads
        return WorkerPool(self.fingerprint.target, threads, threads)


class OwnDevice(Here):
    """A GPU of this machine: candidates are built while others are measured."""

    can = Capabilities(shared_cores=False)

    def open(self) -> WorkerPool:
        # CUDA reserves addresses for all of the GPU's memory, which a limit would refuse. NVIDIA's
        # compiler takes a second for what LLVM compiles in a tenth.
        options = WorkerOptions(build_timeout_s=20.0, memory_limit_bytes=0, recycle_bytes=4 * 2**30)
        # No kernel runs on the host, so a worker has one thread. With a thread for each core,
        # sixteen workers spent 57 % of the time of an H200's host waiting for each other.
        return WorkerPool(self.fingerprint.target, 1, self.fingerprint.threads, options)


def device_of(fingerprint: Fingerprint) -> Device:
    """The device of a fingerprint."""
    for prefix, place in KINDS.items():
        if fingerprint.at.startswith(prefix):
            return resolve_name(place)(fingerprint)
    own = has_own_device(target_from_json(fingerprint.target))
    return (OwnDevice if own else Here)(fingerprint)
