"""onnxruntime's LSTM of 8-bit weights, expanded, beside onnxruntime itself."""

from __future__ import annotations

import numpy as np
import pytest

from tests.expanded_models import assert_node

HIDDEN, WIDTH = 12, 20


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
@pytest.mark.parametrize("by_column", [False, True])
def test_a_layer_quantises_what_each_product_reads(kind: type, by_column: bool) -> None:
    generator = np.random.default_rng(0)
    limits = np.iinfo(kind)

    def whole(*shape: int) -> np.ndarray:
        return generator.integers(limits.min, limits.max + 1, shape).astype(kind)

    def numbers(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape).astype(np.float32)

    sizes = (2, 4 * HIDDEN) if by_column else (2,)
    scales = [(np.abs(numbers(*sizes)) + 0.5).astype(np.float32) * 0.01 for _ in range(2)]
    zeros = [np.full(sizes, 0 if kind is np.int8 else 128, kind) for _ in range(2)]
    inputs = [
        numbers(5, 1, WIDTH),
        whole(2, WIDTH, 4 * HIDDEN),
        whole(2, HIDDEN, 4 * HIDDEN),
        numbers(2, 8 * HIDDEN),
        None,
        numbers(2, 1, HIDDEN),
        numbers(2, 1, HIDDEN),
        None,
        *(each for pair in zip(scales, zeros, strict=True) for each in pair),
    ]
    assert_node(
        "DynamicQuantizeLSTM",
        inputs,
        outputs=["sequence", "hidden", "cell"],
        constants=[1, 2, 3, 8, 9, 10, 11],
        direction="bidirectional",
        hidden_size=HIDDEN,
    )
