"""How numbers of arguments are drawn that are no ordinary ones (`fewtune.schedule_check.sizes`)."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import numpy as np


class Kind(Enum):
    """How the numbers of an argument are drawn."""

    WORDS = "four bytes a word, of any bits"
    PAIRS = "bfloat16 numbers, one in 16 bits"
    WHOLE = "integers of either sign"
    SIGNED = "floats of either sign"
    SCALE = "floats above zero, none far from the others"
    CONSTANT = "one number"


class Fill(NamedTuple):
    """Numbers of one argument.

    Attributes
    ----------
    kind : Kind
    size : float
        The largest; of scales their middle; of a constant, itself.
    """

    kind: Kind
    size: float


def numbers(fill: Fill, dtype: np.dtype, count: int, random: np.random.Generator) -> np.ndarray:
    """Some numbers of one argument, to be repeated.

    Parameters
    ----------
    fill : Fill
    dtype : dtype
    count : int
    random : Generator
    """
    size = fill.size
    if fill.kind is Kind.WORDS:
        return random.integers(-(2**31), 2**31, count).astype(dtype)
    if fill.kind is Kind.PAIRS:
        floats = random.uniform(-size, size, count * dtype.itemsize // 2).astype("float32")
        return (floats.view("uint32") >> 16).astype("uint16").view(dtype)
    if fill.kind is Kind.WHOLE:
        most = max(1, round(size))
        return random.integers(-most, most, count, endpoint=True).astype(dtype)
    if fill.kind is Kind.SIGNED:
        return random.uniform(-size, size, count).astype(dtype)
    if fill.kind is Kind.SCALE:
        return random.uniform(0.5 * size, 1.5 * size, count).astype(dtype)
    return np.full(count, size, dtype)
