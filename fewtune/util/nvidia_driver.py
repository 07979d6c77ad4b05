"""Whether this machine has NVIDIA's driver: where it has, TVM starts CUDA when it is loaded."""

from __future__ import annotations

import ctypes
from functools import cache

DRIVER = "libcuda.so.1"


@cache
def has_nvidia_driver() -> bool:
    """Load the driver's library for what is loaded later; False where there is none.

    A process forked from one that has loaded TVM cannot use the GPU then: CUDA refuses what was
    started before the fork.
    """
    try:
        ctypes.CDLL(DRIVER, ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True
