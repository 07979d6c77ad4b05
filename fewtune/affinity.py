"""On which cores a thread may run, while something is timed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


def cores_off_the_pool() -> set[int]:
    """Those this thread may use that no thread of TVM's pool is bound to; all where none is left.

    The pool is there once a kernel has run on it.
    """
    allowed = os.sched_getaffinity(0)
    return allowed - _bound() or allowed


def cores_of_the_pool(threads: int) -> list[int]:
    """One core for each of some threads but the caller's: those that TVM's pool is bound to.

    None where the pool does not run as many, or has not begun.
    """
    bound = sorted(_bound() & os.sched_getaffinity(0))
    return bound if len(bound) == threads - 1 else []


def _bound() -> set[int]:
    """Cores that threads of this process are bound to, each to one."""
    bound: set[int] = set()
    for thread in os.scandir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):
            cores = os.sched_getaffinity(int(thread.name))
            bound |= cores if len(cores) == 1 else set()
    return bound


@contextlib.contextmanager
def apart_from_the_pool() -> Iterator[None]:
    """Keep this thread off the cores that TVM's pool is bound to, while it measures.

    TVM binds each thread of its pool to a core and lets the caller, which computes beside them,
    roam. Where the caller shares a core with one of them, a kernel takes twice its time, and the
    scheduler may leave it so for a whole measurement.
    """
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores_off_the_pool())
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
