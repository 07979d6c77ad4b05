"""Transposed convolutions of volumes whose kernels do not overlap, as 3-D U-Nets have them.

Each element of the input is multiplied by the whole kernel: one product of matrices, whose rows are
then put in their places. TVM convolves with zeros between the elements: seven of eight products.
"""

from __future__ import annotations

from math import prod

import numpy as np

from fewtune.model.passes.pad_filters import Legalizer
from fewtune.model.passes.relax_calls import float32_weights
from fewtune.runtime.tvm import relax

OPERATOR = "relax.nn.conv3d_transpose"
_LAYOUTS = ("NCDHW", "IODHW", "NCDHW")
# Batch and channels; then, of each axis of space, the elements of the input and of the kernel.
_IN_PLACE = (0, 1, 5, 2, 6, 3, 7, 4)


def legalizer(otherwise: Legalizer) -> Legalizer:
    """A legaliser of transposed convolutions of volumes; `otherwise` legalises the others."""

    def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        weights = _weights_of(call)
        if weights is None:
            return otherwise(builder, call)
        batch, channels, *extents = (int(extent) for extent in call.args[0].ty.shape)
        filters, *kernel = weights.shape[1:]
        rows = np.ascontiguousarray(weights.reshape(channels, -1).T)
        emit = builder.emit
        flat = emit(relax.op.reshape(call.args[0], (batch, channels, prod(extents))))
        product = emit(relax.op.matmul(relax.const(rows), flat))
        apart = emit(relax.op.reshape(product, (batch, filters, *kernel, *extents)))
        placed = emit(relax.op.permute_dims(apart, _IN_PLACE))
        return relax.op.reshape(placed, [int(extent) for extent in call.ty.shape])

    return legalized


def _weights_of(call: relax.Call) -> np.ndarray | None:
    """The constant weights of a convolution whose kernels neither overlap nor leave gaps."""
    weights, given = float32_weights(call), call.attrs
    layouts = tuple(str(e) for e in (given.data_layout, given.kernel_layout, given.out_layout))
    if weights is None or layouts != _LAYOUTS:
        return None
    kernel = list(weights.shape[2:])
    moved = [int(each) for each in (*given.padding, *given.output_padding)]
    steps = [int(each) for each in given.dilation]
    is_apart = [int(each) for each in given.strides] == kernel and not any(moved)
    if int(given.groups) != 1 or not is_apart or set(steps) != {1}:
        return None
    return weights
