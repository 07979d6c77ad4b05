"""Convolutions and products of packed words: neighbouring channels that one instruction multiplies.

A word of 32 bits holds four bytes, or two bfloat16 numbers. Weights are packed into words once; an
activation's word is its neighbouring channels as they lie. In words a convolution is one like any
other, with an operator of `fewtune.runtime` for its multiplication: the same loops and rules tile
it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fewtune.model.passes.winograd import filled
from fewtune.runtime.tvm import te, tvm

WORD_BITS = 32


@dataclass(frozen=True)
class Words:
    """What a word holds, and how two of them are multiplied.

    Attributes
    ----------
    data_type : str
        Unsigned integers that the activations' channels lie in.
    dot : callable
        Of two words, the sum of the products of what they hold.
    name : str
        Begins the names of kernels.
    """

    data_type: str
    dot: Callable[[Any, Any], Any]
    name: str

    @property
    def count(self) -> int:
        """Channels of a word."""
        return WORD_BITS // self.bits

    @property
    def bits(self) -> int:
        """Of one channel."""
        return int(tvm.DataType(self.data_type).bits)


class Window:
    """Strides, dilations and padding of a convolution, and what it is padded with."""

    def __init__(self, attributes: Any, zero: int = 0) -> None:
        self.zero = zero
        self.strides = [int(each) for each in attributes.strides]
        self.dilation = [int(each) for each in attributes.dilation]
        self.padding = [int(each) for each in attributes.padding]

    def around(self, data_type: str) -> list[np.ndarray]:
        """What is around the data, as an argument: layers of one shape are then one kernel."""
        return [np.full(1, self.zero, data_type)] if self.zero and any(self.padding) else []

    def size(self, axis: int, extent: int, taps: int) -> int:
        """Places of the output along an axis."""
        padded = extent + self.padding[axis] + self.padding[axis + 2]
        return (padded - (taps - 1) * self.dilation[axis] - 1) // self.strides[axis] + 1

    def place(self, axis: int, output: Any, tap: Any) -> Any:
        """Where an output's tap reads the padded input."""
        return output * self.strides[axis] + tap * self.dilation[axis]


def merged(weights: np.ndarray, groups: int, lanes: int) -> tuple[np.ndarray, int]:
    """Join groups of a convolution until the filters of one fill vectors.

    Between the channels of one and the filters of another are zeros: a vector of filters then reads
    one word of the data.

    Parameters
    ----------
    weights : numpy.ndarray
        Rows, columns, channels of a group, filters.
    groups, lanes : int

    Returns
    -------
    weights, groups : numpy.ndarray, int
    """
    *taps, channels, filters = weights.shape
    each = filters // groups
    joined = next(
        many
        for many in range(1, groups + 1)
        if groups % many == 0 and (many * each % lanes == 0 or many == groups)
    )
    wide = np.zeros((*taps, joined * channels, filters), weights.dtype)
    for group in range(groups):
        first = group % joined * channels
        own = slice(group * each, (group + 1) * each)
        wide[..., first : first + channels, own] = weights[..., own]
    return wide, groups // joined


def packed(weights: np.ndarray, lanes: int) -> np.ndarray:
    """Neighbouring channels a word, and as many filters as fill vectors.

    Parameters
    ----------
    weights : numpy.ndarray
        Of bytes or of 16 bits, shape (..., channels, filters).
    lanes : int

    Returns
    -------
    words : numpy.ndarray
        int32, shape (..., words, filters); what is added is zero.
    """
    *others, channels, filters = weights.shape
    count = WORD_BITS // 8 // weights.dtype.itemsize
    more = [(0, 0)] * len(others) + [(0, -channels % count), (0, -filters % lanes)]
    wide = np.pad(weights, more)
    grouped = wide.reshape(*others, -1, count, filled(filters, lanes))
    return np.ascontiguousarray(np.moveaxis(grouped, -2, -1)).view(np.int32)[..., 0]


def padded(
    data: te.Tensor, before: list[int], after: list[int], around: te.Tensor | None = None
) -> te.Tensor:
    """The data with zero points around, or with zeros."""
    if not any(before) and not any(after):
        return data
    shape = [int(extent) for extent in data.shape]
    wide = [first + extent + last for first, extent, last in zip(before, shape, after, strict=True)]

    def at(*place: Any) -> Any:
        inside = []
        for where, first, extent, whole in zip(place, before, shape, wide, strict=True):
            if first:
                inside.append(where >= first)
            if first + extent < whole:
                inside.append(where < first + extent)
        moved = [where - first for where, first in zip(place, before, strict=True)]
        zero = tvm.tirx.const(0, str(data.dtype)) if around is None else around[0]
        return tvm.tirx.if_then_else(tvm.tirx.all(*inside), data(*moved), zero)

    return te.compute(wide, at, name="padded_bytes")


def convolved(
    words: Words,
    data: te.Tensor,
    weights: te.Tensor,
    window: Window,
    around: te.Tensor | None = None,
    groups: int = 1,
) -> te.Tensor:
    """A convolution of words.

    Parameters
    ----------
    words : Words
    data : te.Tensor
        Channels last.
    weights : te.Tensor
        From `packed`: rows, columns, words of a group, filters.
    window : Window
    around : te.Tensor, optional
        What the data are padded with; zero unless given.
    groups : int
        The filters of each fill vectors, where there is more than one.
    """
    batch, height, width, channels = (int(extent) for extent in data.shape)
    rows, columns, depth, filters = (int(extent) for extent in weights.shape)
    top, left, bottom, right = window.padding
    own, each = channels // groups, filters // groups
    more = depth * words.count - own
    wide = padded(data, [0, top, left, 0], [0, bottom, right, more], around)
    r = te.reduce_axis((0, rows), name="r")
    s = te.reduce_axis((0, columns), name="s")
    k = te.reduce_axis((0, depth), name="k")

    def summed(n: Any, y: Any, x: Any, f: Any) -> Any:
        place = [n, window.place(0, y, r), window.place(1, x, s)]
        first = k * words.count
        if groups > 1:
            first = f // each * own + first
        word = _word(words, wide, place, first)
        return te.sum(words.dot(word, weights[r, s, k, f]), axis=[r, s, k])

    shape = (batch, window.size(0, height, rows), window.size(1, width, columns), filters)
    return te.compute(shape, summed, name=f"{words.name}_conv2d")


def multiplied(words: Words, data: te.Tensor, weights: te.Tensor) -> te.Tensor:
    """A product of matrices of words; ``weights`` from `packed`: words, columns."""
    *others, depth = (int(extent) for extent in data.shape)
    count, columns = (int(extent) for extent in weights.shape)
    none = [0] * len(others)
    wide = padded(data, [*none, 0], [*none, count * words.count - depth])
    k = te.reduce_axis((0, count), name="k")

    def summed(*place: Any) -> Any:
        *row, column = place
        word = _word(words, wide, row, k * words.count)
        return te.sum(words.dot(word, weights[k, column]), axis=[k])

    return te.compute((*others, columns), summed, name=f"{words.name}_matmul")


def _word(words: Words, data: te.Tensor, place: list[Any], first: Any) -> Any:
    """Neighbours of the last axis as an int32: LLVM makes one load of them."""
    found = None
    for number in range(words.count):
        part = data(*place, first + number).astype("uint32")
        shift = tvm.tirx.const(words.bits * number, "uint32")
        shifted = part if number == 0 else part << shift
        found = shifted if found is None else found | shifted
    return tvm.tirx.reinterpret("int32", found)
