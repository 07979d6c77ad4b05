"""Convolutions and products of packed words, which one instruction multiplies.

A word of 32 bits holds four neighbouring channels of bytes. Weights are packed when a model is
compiled. Activations need no packing: their neighbouring channels are neighbours in memory. A
convolution of words has the loops of any other convolution, so the same rules tile it. Only its
multiplication is an operator of `fewtune.runtime`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fewtune.model.passes.op_patterns import OUT_ELEMENTWISE_FUSABLE
from fewtune.model.passes.pad_filters import without_padding
from fewtune.runtime.tvm import relax, te, tvm
from fewtune.schedule.tiling import round_up

WORD_BITS = 32


@dataclass(frozen=True)
class Words:
    """The contents of a word, and the product of two words.

    Attributes
    ----------
    data_type : str
        Unsigned integer type of one channel of the activations.
    dot : callable
        Multiplies two words channel by channel, and sums the products.
    name : str
        Prefix of the kernels' names.
    """

    data_type: str
    dot: Callable[[Any, Any], Any]
    name: str

    @property
    def count(self) -> int:
        """Channels in a word."""
        return WORD_BITS // self.bits

    @property
    def bits(self) -> int:
        """Bits of one channel."""
        return int(tvm.DataType(self.data_type).bits)


class Window:
    """Strides, dilations and padding of a convolution.

    Parameters
    ----------
    attributes : Attrs
        Of ``relax.nn.conv2d``.
    zero : int
        The zero point of the activations, with which they are padded.
    """

    def __init__(self, attributes: Any, zero: int = 0) -> None:
        self.zero = zero
        self.strides = [int(each) for each in attributes.strides]
        self.dilation = [int(each) for each in attributes.dilation]
        self.padding = [int(each) for each in attributes.padding]

    def pad_values(self, data_type: str) -> list[np.ndarray]:
        """The kernel's argument for the value of the padding; none if that is 0.

        As an argument, the value does not make the kernels of two layers differ.
        """
        return [np.full(1, self.zero, data_type)] if self.zero and any(self.padding) else []

    def size(self, axis: int, extent: int, taps: int) -> int:
        """Extent of the output along an axis, for an input extent and a kernel extent."""
        padded = extent + self.padding[axis] + self.padding[axis + 2]
        return (padded - (taps - 1) * self.dilation[axis] - 1) // self.strides[axis] + 1

    def place(self, axis: int, output: Any, tap: Any) -> Any:
        """Index into the padded input, for an output index and a kernel index."""
        return output * self.strides[axis] + tap * self.dilation[axis]


def merged(weights: np.ndarray, groups: int, lanes: int) -> tuple[np.ndarray, int]:
    """Join groups of a convolution until the filters of one joined group fill vectors.

    A vector of filters then reads one word of the data. Weights between channels and filters of
    different original groups are zero.

    Parameters
    ----------
    weights : numpy.ndarray
        Shape (rows, columns, channels of a group, filters).
    groups, lanes : int

    Returns
    -------
    weights : numpy.ndarray
        Shape (rows, columns, channels of a joined group, filters).
    groups : int
        Number of joined groups.
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
    """Pack neighbouring channels of weights into words, and pad their filters to whole vectors.

    Parameters
    ----------
    weights : numpy.ndarray
        Of 8 or 16 bits, shape (..., channels, filters).
    lanes : int

    Returns
    -------
    words : numpy.ndarray
        int32, shape (..., words, padded filters). Added channels and filters are zero.
    """
    *others, channels, filters = weights.shape
    count = WORD_BITS // 8 // weights.dtype.itemsize
    more = [(0, 0)] * len(others) + [(0, -channels % count), (0, -filters % lanes)]
    wide = np.pad(weights, more)
    grouped = wide.reshape(*others, -1, count, round_up(filters, lanes))
    return np.ascontiguousarray(np.moveaxis(grouped, -2, -1)).view(np.int32)[..., 0]


def padded(
    data: te.Tensor, before: list[int], after: list[int], pad_value: te.Tensor | None = None
) -> te.Tensor:
    """The data, padded with a value, or with zeros.

    Parameters
    ----------
    data : te.Tensor
    before, after : list of int
        Elements added by axis.
    pad_value : te.Tensor, optional
        Shape (1,).
    """
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
        value = tvm.tirx.const(0, str(data.dtype)) if pad_value is None else pad_value[0]
        return tvm.tirx.if_then_else(tvm.tirx.all(*inside), data(*moved), value)

    return te.compute(wide, at, name="padded_bytes")


def convolved(
    words: Words,
    data: te.Tensor,
    weights: te.Tensor,
    window: Window,
    pad_value: te.Tensor | None = None,
    groups: int = 1,
) -> te.Tensor:
    """A convolution of words.

    Parameters
    ----------
    words : Words
    data : te.Tensor
        In NHWC.
    weights : te.Tensor
        From `packed`, shape (rows, columns, words of a group, filters).
    window : Window
    pad_value : te.Tensor, optional
        Shape (1,); zero unless given.
    groups : int
        If there are several, the filters of each fill vectors.

    Returns
    -------
    result : te.Tensor
        int32 or float32 as `Words.dot` sums, in NHWC.
    """
    batch, height, width, channels = (int(extent) for extent in data.shape)
    rows, columns, depth, filters = (int(extent) for extent in weights.shape)
    top, left, bottom, right = window.padding
    own, each = channels // groups, filters // groups
    more = depth * words.count - own
    wide = padded(data, [0, top, left, 0], [0, bottom, right, more], pad_value)
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
    """A product of matrices of words.

    Parameters
    ----------
    words : Words
    data : te.Tensor
        Shape (..., depth).
    weights : te.Tensor
        From `packed`, shape (words, columns).
    """
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


def call_packed(
    builder: relax.BlockBuilder,
    call: relax.Call,
    compute: Callable[..., te.Tensor],
    data: relax.Expr,
    constants: Sequence[np.ndarray],
    name: str,
) -> relax.Expr:
    """Call a kernel in place of a convolution or product, without its padded filters.

    Parameters
    ----------
    builder : BlockBuilder
    call : relax.Call
        Of the convolution or product.
    compute : callable
        Gives the kernel's result for its arguments: ``data`` and ``constants``.
    data : Expr
    constants : sequence of numpy.ndarray
        The weights first; their last axis is the padded filters.
    name : str
        Of the kernel.
    """
    result = builder.call_te(
        compute,
        data,
        *(relax.const(each) for each in constants),
        primfunc_name_hint=name,
        primfunc_attrs={"op_pattern": OUT_ELEMENTWISE_FUSABLE},
    )
    if constants[0].shape[-1] == int(call.ty.shape[-1]):
        return result
    return without_padding(builder, result, call)


def _word(words: Words, data: te.Tensor, place: list[Any], first: Any) -> Any:
    """Neighbours along the last axis as an int32, which LLVM loads at once."""
    found = None
    for number in range(words.count):
        part = data(*place, first + number).astype("uint32")
        shift = tvm.tirx.const(words.bits * number, "uint32")
        shifted = part if number == 0 else part << shift
        found = shifted if found is None else found | shifted
    return tvm.tirx.reinterpret("int32", found)
