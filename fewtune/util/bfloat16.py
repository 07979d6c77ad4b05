"""bfloat16: float32 numbers of which the upper 16 bits are kept."""

from __future__ import annotations

import numpy as np

_HALF, _NOT_A_NUMBER = 0x7FFF, 0x7FC0


def rounded(values: np.ndarray) -> np.ndarray:
    """Bits of float32 numbers rounded to bfloat16, half to even, as uint16."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    found = (bits + np.uint32(_HALF) + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), np.uint32(_NOT_A_NUMBER), found).astype(np.uint16)


def widened(bits: np.ndarray) -> np.ndarray:
    """The float32 values of bfloat16 numbers."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
