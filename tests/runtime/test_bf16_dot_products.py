"""Dot products of two bfloat16 numbers in vectors of every length."""

import numpy as np
import pytest

from fewtune.runtime.bf16_dot_products import FEATURES, dot2
from fewtune.runtime.target import resolve_target
from fewtune.runtime.tvm import has_feature, tvm
from fewtune.util.bfloat16 import rounded
from tests.made.products import product_of_words

ROWS, DEPTH = 8, 24
HERE = resolve_target("auto", 1)
HAS = all(has_feature(HERE, feature) for feature in FEATURES)


def product(columns, lanes):
    return product_of_words(ROWS, DEPTH // 2, columns, lanes, dot2)


@pytest.mark.skipif(not HAS, reason="the processor has no bf16 products")
@pytest.mark.parametrize(("columns", "lanes"), [(32, 32), (16, 16), (16, 4), (20, 20), (6, 2)])
def test_every_length_sums_in_float32(columns, lanes):
    random = np.random.default_rng(0)
    data = random.integers(-128, 128, (ROWS, DEPTH)).astype(np.float32)
    weights = random.integers(-128, 128, (DEPTH, columns)).astype(np.float32)
    words = rounded(weights).reshape(-1, 2, columns).transpose(0, 2, 1)
    result = tvm.runtime.tensor(np.zeros((ROWS, columns), np.float32))
    tvm.driver.build(product(columns, lanes), target=HERE)["main"](
        tvm.runtime.tensor(rounded(data).view(np.int32)),
        tvm.runtime.tensor(np.ascontiguousarray(words).view(np.int32)[..., 0]),
        result,
    )
    # Whole numbers of eight bits are exact in bfloat16, and their sums are exact.
    assert np.array_equal(result.numpy(), data @ weights)


def test_emitted_code_holds_the_instruction():
    target = tvm.target.Target({"kind": "llvm", "mcpu": "znver4"})
    text = tvm.driver.build(product(32, 32), target=target).inspect_source("asm")
    assert "vdpbf16ps" in text
    # The sum is the instruction's own, no addition after it.
    assert "vaddps" not in text


def test_kernels_are_read_back_as_written():
    module = product(32, 16)
    assert tvm.ir.load_json(tvm.ir.save_json(module)).script() == module.script()
