"""How fast the cache is that the cores share, just now.

On a shared host, guests of other cores fill that cache, too. A machine was seen in two states, for
seconds to minutes each, which no load of its own brought about: what kernels wrote and the next
ones read came from the shared cache in one of them, from memory in the other, and those kernels
took up to 2.8 times as long (results/README.md). A kernel that computes in registers, as the one by
which `fewtune.timing.calibration` tells slow moments, does not see it; time that the host keeps
(`fewtune.machine.steal_time`) does not tell it either. A triad on buffers that the cores' own
caches do not hold, and the shared one does, shows it.

Figures of different states are not to be compared. What is measured in turns meets both alike; to
all else this rate is a condition, which is told beside it.
"""

from __future__ import annotations

import statistics
import time

from fewtune.machine.cache_sizes import last_level_cache_bytes, own_caches_bytes
from fewtune.machine.peak import Triad
from fewtune.runtime.target import has_own_device
from fewtune.runtime.tvm import tvm

# Its buffers together: times what the cores' own caches hold, which then serve little of it, and
# of the shared one no more than this part.
_OVER_OWN, _MOST_OF_SHARED = 4, 0.5
_CALLS = 7


class SharedCache:
    """Measures what a triad moves through the shared cache.

    Parameters
    ----------
    target : Target
        Of a CPU.
    threads : int
        TVM's pool must have as many.
    whole_bytes : int
        Of the triad's buffers together.
    """

    def __init__(self, target: tvm.target.Target, threads: int, whole_bytes: int) -> None:
        triad = Triad(target, threads, whole_bytes)
        self._moved_bytes = triad.moved_bytes
        self._main = triad.built["main"]
        self._buffers = triad.buffers()

    def run(self) -> None:
        """Run the triad once."""
        self._main(*self._buffers)

    def rate_gb_s(self, time_s: float) -> float:
        """10^9 bytes read and written a second, where one call takes ``time_s``."""
        return self._moved_bytes / time_s / 1e9

    def now_gb_s(self) -> float:
        """The rate just now: of the median of a few calls, after one that fetches the buffers."""
        self.run()
        taken_s = []
        for _ in range(_CALLS):
            began_s = time.perf_counter()
            self.run()
            taken_s.append(time.perf_counter() - began_s)
        return self.rate_gb_s(statistics.median(taken_s))


def shared_cache(target: tvm.target.Target, threads: int) -> SharedCache | None:
    """What measures the shared cache of a target's machine.

    Parameters
    ----------
    target : Target
    threads : int

    Returns
    -------
    cache : SharedCache or None
        None where kernels run on a device of its own, where the system does not tell its caches,
        or where the shared one is no larger than the cores' own, so that nothing of it is seen.
    """
    if has_own_device(target):
        return None
    own_bytes, shared_bytes = own_caches_bytes(threads), last_level_cache_bytes()
    if own_bytes is None or shared_bytes is None:
        return None
    whole_bytes = _OVER_OWN * own_bytes
    if whole_bytes > _MOST_OF_SHARED * shared_bytes:
        return None
    return SharedCache(target, threads, whole_bytes)
