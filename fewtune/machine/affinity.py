"""The cores on which a thread may run while something is timed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator


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
def apart_from_the_pool() -> Iterator[None]:
    """Keep this thread off the cores that TVM's pool is bound to, while it measures.

    TVM binds each thread of its pool to a core. The caller also computes, but is not bound. If it
    shares a core with a thread of the pool, a kernel takes twice its time, and the scheduler may
    leave it so for a whole measurement.
    """
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores_off_the_pool())
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def on_cores(cores: set[int], run: Callable[[], object]) -> object:
    """Run something with this thread on some cores; it stays there."""
    os.sched_setaffinity(0, cores)
    return run()
