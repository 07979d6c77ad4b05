"""The host of measurements: cores that a thread may use, caches, time that others take."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil


def cores_off_the_pool() -> set[int]:
    """The usable cores to which no thread of TVM's pool is bound; all usable ones if none is left.

    The pool exists once a kernel has run on it.
    """
    allowed = os.sched_getaffinity(0)
    bound: set[int] = set()
    for thread in os.scandir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):
            cores = os.sched_getaffinity(int(thread.name))
            bound |= cores if len(cores) == 1 else set()
    return allowed - bound or allowed


@contextlib.contextmanager
def apart_from_the_pool(apart: set[int] | None = None) -> Iterator[None]:
    """Keep this thread off the cores that TVM's pool is bound to, while it measures.

    Where each call is timed, ``apart`` is what `cores_off_the_pool` gave before.

    TVM binds each thread of its pool to a core. The caller also computes, but is not bound. If it
    shares a core with a thread of the pool, a kernel takes twice its time, and the scheduler may
    leave it so for a whole measurement.
    """
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, apart or cores_off_the_pool())
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


# Where Linux describes the caches of a core; the other functions' default.
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def last_level_cache_bytes(caches: Path = CACHES) -> int | None:
    """Size of the largest cache of a core; None where the system does not report it."""
    return max(_cache_sizes(caches), default=None)


def own_cache_bytes(caches: Path = CACHES) -> int | None:
    """Size of the last cache that a core has for itself; None where none is reported."""
    sizes = sorted(_cache_sizes(caches))
    return sizes[-2] if len(sizes) > 1 else None


def _cache_sizes(caches: Path) -> list[int]:
    """Bytes of the caches of a core."""
    sizes = []
    for file in caches.glob("index*/size"):
        text = file.read_text().strip()
        number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "")
        if number.isdigit():
            sizes.append(int(number) * _UNITS.get(unit, 1))
    return sizes


def stolen_s() -> float:
    """Seconds since the machine's start that its host kept from a core: the cores' mean."""
    return psutil.cpu_times().steal / (os.cpu_count() or 1)


class Neighbours:
    """Measures how many cores other processes and the host take from this process.

    Parameters
    ----------
    threads : int
        Of this process. Usable cores that they leave free may be taken: they do not count.
    """

    def __init__(self, threads: int) -> None:
        # Those of now: what is measured moves this thread from core to core.
        self._cores = os.sched_getaffinity(0)
        self._spare = len(self._cores) - threads
        self._last = self._read()

    def taken_cores(self) -> float:
        """Cores that were taken since the last call, as a mean over that time."""
        before, self._last = self._last, self._read()
        passed_s, others_s = (now - then for now, then in zip(self._last, before, strict=True))
        return max(0.0, others_s / passed_s - self._spare) if passed_s > 0 else 0.0

    def _read(self) -> tuple[float, float]:
        """The time, and the seconds that the cores were busy, or kept by the host, for others."""
        every = enumerate(psutil.cpu_times(percpu=True))
        taken_s = sum(
            each.user + each.nice + each.system + each.irq + each.softirq + each.steal
            for core, each in every
            if core in self._cores
        )
        return time.perf_counter(), taken_s - time.process_time()
