"""Transposed convolutions as convolutions of the elements that are there, in NHWC.

TVM puts zeros between the elements of the input and convolves that: with a stride of 2, three of
four products are with zeros. But each place within a stride, a phase, meets only some taps of the
kernel. They are a smaller kernel of its own (Shi et al. 2016, arXiv:1609.05158). The filters of all
phases are the filters of one ordinary convolution. A second kernel puts its channels in their
places, and takes in bias and activation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fewtune.model.passes.padding import injective
from fewtune.model.passes.relax_calls import FLOAT, Legalizer, extents_of
from fewtune.runtime.tvm import relax, te
from fewtune.tvm_compat.values import is_constant

OPERATOR = "relax.nn.conv2d_transpose"
_KERNEL_LAYOUT = "IOHW"
_NAME = "depth_to_space"

Layouts = Mapping[str, list[str]]


class Axis(NamedTuple):
    """Rows or columns of a transposed convolution.

    Attributes
    ----------
    given, result : int
        Extents of the input and the result.
    kernel, stride : int
    cut : int
        Elements that padding removes from the beginning of the result.
    """

    given: int
    result: int
    kernel: int
    stride: int
    cut: int

    @property
    def taps(self) -> int:
        """Extent of the kernel of a phase."""
        return -(-self.kernel // self.stride)

    @property
    def shift(self) -> int:
        """The phase of the first result."""
        return self.cut % self.stride

    @property
    def padding(self) -> tuple[int, int]:
        """Zeros before and after the input."""
        before = self.taps - 1 - self.cut // self.stride
        strides = (self.result - 1 + self.shift) // self.stride + 1
        return before, strides + self.taps - 1 - self.given - before


def layouts(otherwise: Layouts) -> Callable[[relax.Call], Layouts]:
    """For TVM's layout conversion: the layouts that a call is to have.

    Parameters
    ----------
    otherwise : mapping
        The layouts of calls that this module does not convert.
    """

    def wanted(call: relax.Call) -> Layouts:
        is_ours = getattr(call.op, "name", "") == OPERATOR and axes_of(call) is not None
        return {OPERATOR: ["NHWC", _KERNEL_LAYOUT]} if is_ours else otherwise

    return wanted


def legalizer(convolution: Legalizer, otherwise: Legalizer) -> Legalizer:
    """A legalizer of transposed convolutions.

    Parameters
    ----------
    convolution, otherwise : callable
        Legalize an ordinary convolution, and what `axes_of` gives None for.
    """

    def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        axes = axes_of(call) if str(call.attrs.data_layout) == "NHWC" else None
        if axes is None:
            return otherwise(builder, call)
        kernels = phase_kernels(call.args[1].value.numpy(), *axes)
        (top, bottom), (left, right) = (axis.padding for axis in axes)
        side_by_side = kernels.transpose(2, 3, 4, 0, 1, 5).reshape(*kernels.shape[2:5], -1)
        convolved = relax.op.nn.conv2d(
            call.args[0],
            relax.const(np.ascontiguousarray(side_by_side)),
            padding=(top, left, bottom, right),
            data_layout="NHWC",
            kernel_layout="HWIO",
        )
        legal = convolution(builder, builder.normalize(convolved))
        if all(axis.stride == 1 for axis in axes):
            return legal
        return _in_place(builder, call, builder.emit(legal), *axes)

    return legalized


def axes_of(call: relax.Call) -> tuple[Axis, Axis] | None:
    """Rows and columns of a transposed convolution in any layout; None if it is not converted.

    It is if its weights are a float32 constant, without dilation and groups.
    """
    types = {str(each.ty.dtype) for each in (*call.args, call)}
    if not is_constant(call.args[1]) or types != {FLOAT}:
        return None
    given, (_, _, *kernel), result = map(extents_of, (*call.args, call))
    attributes = call.attrs
    layout = str(attributes.data_layout)
    plain = [str(attributes.kernel_layout), str(attributes.out_layout)] == [_KERNEL_LAYOUT, layout]
    if not plain or any(int(each) != 1 for each in (attributes.groups, *attributes.dilation)):
        return None
    rows, columns = (
        Axis(
            given[layout.index(name)],
            result[layout.index(name)],
            kernel[place],
            # A single element is multiplied by the whole kernel, whatever the stride.
            kernel[place] if given[layout.index(name)] == 1 else int(attributes.strides[place]),
            int(attributes.padding[place]),
        )
        for place, name in enumerate("HW")
    )
    # Negative padding: the input would have to be cut.
    is_whole = min(*rows.padding, *columns.padding) >= 0
    return (rows, columns) if is_whole else None


def phase_kernels(weights: np.ndarray, rows: Axis, columns: Axis) -> np.ndarray:
    """The kernel of each phase: (row's phase, column's, taps, taps, channels, filters).

    Taps stand in the order in which a convolution meets the input, the reverse of a transposed one.
    """
    channels, filters, height, width = weights.shape
    tall, wide = (axis.taps * axis.stride for axis in (rows, columns))
    more = [(0, 0), (0, 0), (0, tall - height), (0, wide - width)]
    apart = np.pad(weights, more).reshape(
        channels, filters, rows.taps, rows.stride, columns.taps, columns.stride
    )
    return np.ascontiguousarray(apart[:, :, ::-1, :, ::-1].transpose(3, 5, 2, 4, 0, 1))


def _in_place(
    builder: relax.BlockBuilder, call: relax.Call, convolved: relax.Expr, rows: Axis, columns: Axis
) -> relax.Call:
    """Move the channels of a convolution with the filters of all phases to their places."""
    shape = extents_of(call)
    filters = shape[3]

    def place(given: te.Tensor) -> te.Tensor:
        def at(n: Any, y: Any, x: Any, c: Any) -> Any:
            y, x = y + rows.shift, x + columns.shift
            phase = y % rows.stride * columns.stride + x % columns.stride
            return given[n, y // rows.stride, x // columns.stride, phase * filters + c]

        return te.compute(shape, at, name=_NAME)

    return injective(builder, place, convolved, _NAME)
