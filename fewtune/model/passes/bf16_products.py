"""Convolutions and products of bfloat16 numbers, summed in float32.

Two channels are one word of 32 bits (`fewtune.model.passes.packed_products`). Weights are rounded
and packed at compile time. Activations are rounded by the kernel that computes them, or by a small
kernel of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import numpy as np

from fewtune.model.passes.op_patterns import ELEMENTWISE
from fewtune.model.passes.packed_products import (
    Window,
    Words,
    call_packed,
    convolved,
    merged,
    multiplied,
    packed,
)
from fewtune.model.passes.pad_filters import Legalizer
from fewtune.model.passes.relax_calls import float32_weights
from fewtune.runtime.bf16_dot_products import dot2, rounding
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import relax, te
from fewtune.util.bfloat16 import rounded

NAME = "bf16"
_FLOAT = "float32"
# Joining groups adds products with zeros. More than twice the products cost more than float32 does.
_MOST_WASTE = 2
_WORDS = Words("uint16", dot2, NAME)


def is_product(kernel: str) -> bool:
    """Whether a kernel of this name multiplies in bfloat16."""
    return re.search(rf"(^|_){NAME}_(conv2d|matmul)", kernel) is not None


def convolutions(traits: CpuTraits, fallback: Legalizer) -> Legalizer:
    """A legaliser of float32 convolutions in NHWC with constant weights.

    Parameters
    ----------
    traits : CpuTraits
    fallback : callable
        Legalises all other convolutions, such as depthwise ones.
    """

    def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        weights, attributes = float32_weights(call), call.attrs
        layouts = (str(attributes.data_layout), str(attributes.kernel_layout))
        if weights is None or layouts != ("NHWC", "HWIO") or weights.shape[2] == 1:
            return fallback(builder, call)
        joined, groups = merged(weights, int(attributes.groups), traits.lanes(_FLOAT))
        if joined.shape[2] > _MOST_WASTE * weights.shape[2]:
            return fallback(builder, call)
        compute = partial(convolved, _WORDS, window=Window(attributes), groups=groups)
        return _emitted(builder, call, joined, compute, traits)

    return legalized


def products(traits: CpuTraits, fallback: Legalizer) -> Legalizer:
    """A legaliser of float32 products with a constant matrix.

    Parameters
    ----------
    traits : CpuTraits
    fallback : callable
        Legalises all other products.
    """

    def legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        weights = float32_weights(call)
        if weights is None or weights.ndim != 2 or len(call.args[0].ty.shape) < 2:
            return fallback(builder, call)
        return _emitted(builder, call, weights, partial(multiplied, _WORDS), traits)

    return legalized


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
            primfunc_attrs={"op_pattern": ELEMENTWISE},
        )
    )
    name = f"{NAME}_{'matmul' if weights.ndim == 2 else 'conv2d'}"
    return call_packed(builder, call, compute, data, [words], name)


def _rounded(given: te.Tensor) -> te.Tensor:
    return te.compute(given.shape, lambda *place: rounding(given(*place)), name=f"to_{NAME}")
