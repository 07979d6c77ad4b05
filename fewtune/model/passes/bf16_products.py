"""Convolutions and products in bfloat16: float32 activations are rounded, sums are not.

Two channels are one word of 32 bits (`fewtune.model.passes.packed_products`). Weights are rounded
and packed here, once. The kernel that makes an activation rounds it, or a small kernel does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import numpy as np

from fewtune.model.passes.packed_products import (
    Window,
    Words,
    convolved,
    merged,
    multiplied,
    packed,
)
from fewtune.model.passes.pad_filters import Legalizer, without_padding
from fewtune.runtime.bf16_dot_products import dot2, rounding
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import relax, te, tvm
from fewtune.util.bfloat16 import rounded

CONVOLUTION, PRODUCT = "relax.nn.conv2d", "relax.matmul"
NAME = "bf16"
_FLOAT = "float32"
# Where groups are joined, most products with zeros for one that counts: floats take twice as long.
_MOST_WASTE = 2
_WORDS = Words("uint16", dot2, NAME)
# TVM's kinds of operators (OpPatternKind): fused with what is around, with what is behind.
_ELEMENTWISE, _OUT_ELEMENTWISE_FUSABLE = 0, 4


def is_product(kernel: str) -> bool:
    """Whether a kernel of this name multiplies in bfloat16."""
    return re.search(rf"(^|_){NAME}_(conv2d|matmul)", kernel) is not None


def convolutions(traits: CpuTraits, otherwise: Legalizer) -> Legalizer:
    """A legaliser of convolutions; those that it has no kernel for are handed on.

    It has one for float32 in NHWC with constant weights, but for depthwise ones.
    """

    def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        weights, attributes = _weights_of(call), call.attrs
        layouts = (str(attributes.data_layout), str(attributes.kernel_layout))
        if weights is None or layouts != ("NHWC", "HWIO") or weights.shape[2] == 1:
            return otherwise(builder, call)
        joined, groups = merged(weights, int(attributes.groups), traits.lanes(_FLOAT))
        if joined.shape[2] > _MOST_WASTE * weights.shape[2]:
            return otherwise(builder, call)
        compute = partial(convolved, _WORDS, window=Window(attributes), groups=groups)
        return _emitted(builder, call, joined, compute, traits)

    return legalized


def products(traits: CpuTraits, otherwise: Legalizer) -> Legalizer:
    """A legaliser of products of float32 with a constant matrix; others are handed on."""

    def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        weights = _weights_of(call)
        if weights is None or weights.ndim != 2 or len(call.args[0].ty.shape) < 2:  # noqa: PLR2004
            return otherwise(builder, call)
        return _emitted(builder, call, weights, partial(multiplied, _WORDS), traits)

    return legalized


def _weights_of(call: relax.Call) -> np.ndarray | None:
    data, weights = call.args
    if not isinstance(weights, tvm.ir.expr.GenericConst):
        return None
    kinds = [str(each) for each in (data.ty.dtype, weights.value.dtype, call.ty.dtype)]
    return weights.value.numpy() if kinds == [_FLOAT] * 3 else None


def _emitted(
    builder: relax.BlockBuilder,
    call: relax.Call,
    weights: np.ndarray,
    compute: Callable[[te.Tensor, te.Tensor], te.Tensor],
    traits: CpuTraits,
) -> relax.Expr:
    words = packed(rounded(weights), traits.lanes(_FLOAT))
    data = builder.emit(
        builder.call_te(
            _rounded,
            call.args[0],
            primfunc_name_hint=f"to_{NAME}",
            primfunc_attrs={"op_pattern": _ELEMENTWISE},
        )
    )
    result = builder.call_te(
        compute,
        data,
        relax.const(words),
        primfunc_name_hint=f"{NAME}_{'matmul' if weights.ndim == 2 else 'conv2d'}",  # noqa: PLR2004
        primfunc_attrs={"op_pattern": _OUT_ELEMENTWISE_FUSABLE},
    )
    if words.shape[-1] == int(call.ty.shape[-1]):
        return result
    return without_padding(builder, result, call)


def _rounded(given: te.Tensor) -> te.Tensor:
    return te.compute(given.shape, lambda *place: rounding(given(*place)), name=f"to_{NAME}")
