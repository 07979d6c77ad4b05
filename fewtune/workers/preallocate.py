"""Memory of large kernels, taken by all workers at once."""

from __future__ import annotations

from collections.abc import Sequence

from fewtune.timing.buffers import Specs
from fewtune.timing.cache_state import buffer_bytes
from fewtune.trial.worker_reply import Built, Failure
from fewtune.workers.handle import call_all
from fewtune.workers.pool import WorkerPool

# Buffers of one candidate together that take a while to find memory for.
_LARGE_BYTES = 64 * 2**20


def take_memory(pool: WorkerPool, built: Sequence[Built | Failure], specs: Sequence[Specs]) -> None:
    """Have workers take the memory of large candidates all at once, before they are raced.

    What is touched for the first time, the system, and the host of a virtual machine, have to
    find: a second for the 411 MB of VGG 19's classifier, in each worker, one after the other.

    Parameters
    ----------
    pool : WorkerPool
    built : sequence of Built or Failure
    specs : sequence of Specs
        The buffers of each.
    """
    sizes = [sum(buffer_bytes(*spec) for spec in each) for each in specs]
    # By worker, its largest: that comes last.
    largest: dict[int, tuple[Built, Specs]] = {}
    for place in sorted(range(len(built)), key=sizes.__getitem__):
        candidate = built[place]
        if sizes[place] >= _LARGE_BYTES and isinstance(candidate, Built):
            largest[candidate.worker] = candidate, specs[place]
    if len(largest) < 2:  # noqa: PLR2004 (one alone does it as it measures)
        return
    # Whoever cannot will fail when it is to measure.
    able = [w for w, (each, _) in largest.items() if not pool.handles[w].lost_since(each)]
    requests = [("take_memory", largest[w][0].number, largest[w][1]) for w in able]
    limit_s = pool.options.run_timeout_s
    call_all([pool.handles[w] for w in able], requests, limit_s, "run_timeout")
