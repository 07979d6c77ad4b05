"""Dot products of four bytes, in every form that this processor can run."""

from functools import partial

import numpy as np
import pytest

from fewtune.runtime import dot_products
from fewtune.runtime.target import resolve_target
from fewtune.runtime.tvm import compiled, has_feature, tvm
from tests.made.products import product_of_words

ROWS, DEPTH = 8, 24
HERE = resolve_target("auto", 1)
FORMS = {
    dot_products.VNNI: "znver4",
    dot_products.AVX_VNNI: "alderlake",
    dot_products.MADD: "skylake-avx512",
    dot_products.AVX2_MADD: "haswell",
    dot_products.PLAIN: "x86-64",
}
INSTRUCTIONS = {
    dot_products.VNNI: "vpdpbusd",
    dot_products.AVX_VNNI: "vpdpbusd",
    dot_products.MADD: "vpmaddwd",
    dot_products.AVX2_MADD: "vpmaddwd",
}
NEEDS = {form: features for form, features, _ in dot_products.FORMS}


def product(form, columns, lanes):
    dot = partial(dot_products.dot4, form)
    return product_of_words(ROWS, DEPTH // 4, columns, lanes, dot)


def built(form, columns, lanes):
    target = tvm.target.Target({"kind": "llvm", "mcpu": FORMS[form]})
    if not all(has_feature(HERE, feature) for feature in NEEDS.get(form, ())):
        pytest.skip(f"this processor has no {form}")
    return compiled(product(form, columns, lanes), target=target)


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "lanes"), [(32, 32), (16, 4), (6, 2)])
@pytest.mark.parametrize("form", list(FORMS))
def test_no_form_saturates(form, columns, lanes):
    """Of the largest bytes, two products already leave 16 bits."""
    random = np.random.default_rng(0)
    data = random.choice(np.array([0, 255, 254, 7], np.uint8), (ROWS, DEPTH))
    weights = random.choice(np.array([-128, 127, -127, 3], np.int8), (DEPTH, columns))
    data[0], weights[:, 0] = 255, -128
    words = np.ascontiguousarray(weights.reshape(-1, 4, columns).transpose(0, 2, 1))
    result = tvm.runtime.tensor(np.zeros((ROWS, columns), np.int32))
    kernel = built(form, columns, lanes)["main"]
    kernel(
        tvm.runtime.tensor(data.view(np.int32)),
        tvm.runtime.tensor(words.view(np.int32)[..., 0]),
        result,
    )
    expected = data.astype(np.int32) @ weights.astype(np.int32)
    assert np.array_equal(result.numpy(), expected)


@pytest.mark.parametrize("form", list(INSTRUCTIONS))
def test_emitted_code_holds_the_instruction(form):
    text = built(form, 32, 32).inspect_source("asm")
    assert INSTRUCTIONS[form] in text
    # The sum is the instruction's own, no addition after it.
    if form in (dot_products.VNNI, dot_products.AVX_VNNI):
        assert "vpaddd" not in text
    assert "vpmaddubsw" not in text


@pytest.mark.parametrize(
    ("form", "mcpu", "call"),
    [
        (dot_products.USDOT, "neoverse-v1", "usdot"),
        (dot_products.SDOT, "neoverse-n1", "sdot"),
    ],
)
def test_arm_has_its_own_instructions(form, mcpu, call):
    target = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": mcpu})
    assert dot_products.form_of(lambda feature: has_feature(target, feature)) == form
    text = compiled(product(form, 32, 16), target=target).inspect_source("asm")
    assert call in text
