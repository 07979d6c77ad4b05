"""On which cores a thread may run, while something is timed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def apart_from_the_pool() -> Iterator[None]:
    """Keep this thread off the cores that TVM's pool is bound to, while it measures.

    TVM binds each thread of its pool to a core and lets the caller, which computes beside them,
    roam. Where the caller shares a core with one of them, a kernel takes twice its time, and the
    scheduler may leave it so for a whole measurement.
    """
    allowed = os.sched_getaffinity(0)
    bound: set[int] = set()
    for thread in os.scandir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):
            cores = os.sched_getaffinity(int(thread.name))
            bound |= cores if len(cores) == 1 else set()
    free = allowed - bound
    if bound and free:
        os.sched_setaffinity(0, free)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
