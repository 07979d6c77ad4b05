"""How many threads share a direction of a recurrent layer."""

from __future__ import annotations

from fewtune.task.analysis import FLOAT32_BYTES

# The time in which threads wait for each other, in bytes that a core reads from its own cache.
_WAIT_BYTES = 2**18
# Bytes of weights that stay in a core's cache from step to step. A core reads much larger weights
# at most so many times slower.
_RESIDENT_BYTES, _MOST_SLOWDOWN = 2**20, 5


def shared_by(threads: int, directions: int, weights: int, item_bytes: int, waits: int) -> int:
    """Threads that share each step of a direction; 1 if directions better run in parallel.

    Parameters
    ----------
    threads, directions : int
    weights, item_bytes : int
        Recurrent weights of a direction, and the size of one.
    waits : int
        How often threads wait for each other at a step.
    """
    alone = _reading(weights, item_bytes) * -(-directions // threads)
    shared = (waits * _WAIT_BYTES + _reading(weights / threads, item_bytes)) * directions
    return threads if shared < alone else 1


def _reading(weights: float, item_bytes: int) -> float:
    """Time to read so many weights at every step, in bytes that a core reads from its own cache.

    An integer from there takes as long as a float32, since it is converted.
    """
    size = weights * item_bytes
    far = size * min(max(1.0, size / _RESIDENT_BYTES), _MOST_SLOWDOWN)
    return max(weights * FLOAT32_BYTES, far)
