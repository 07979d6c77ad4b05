"""Draws special values of arguments, which `fewtune.schedule_check.sizes` chooses."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import numpy as np


class Kind(Enum):
    """How the values of an argument are drawn."""

    WORDS = "random words of four bytes"
    WHOLE = "integers of either sign"
    SIGNED = "floats of either sign"
    SCALE = "positive floats of similar size"
    CONSTANT = "one value"


class Fill(NamedTuple):
    """How one argument is filled.

    Attributes
    ----------
    kind : Kind
    size : float
        The largest magnitude; the middle of scales; the value of a constant.
    """

    kind: Kind
    size: float


def numbers(fill: Fill, dtype: np.dtype, count: int, random: np.random.Generator) -> np.ndarray:
    """Draw values of one argument, which the caller repeats.

    Parameters
    ----------
    fill : Fill
    dtype : dtype
    count : int
    random : Generator

    Returns
    -------
    values : numpy.ndarray
        (count,), of ``dtype``.
    """
    size = fill.size
    if fill.kind is Kind.WORDS:
        return random.integers(-(2**31), 2**31, count).astype(dtype)
    if fill.kind is Kind.WHOLE:
        most = max(1, round(size))
        return random.integers(-most, most, count, endpoint=True).astype(dtype)
    if fill.kind is Kind.SIGNED:
        return random.uniform(-size, size, count).astype(dtype)
    if fill.kind is Kind.SCALE:
        return random.uniform(0.5 * size, 1.5 * size, count).astype(dtype)
    return np.full(count, size, dtype)
