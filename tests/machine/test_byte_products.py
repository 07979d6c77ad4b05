"""The kernel that measures products of bytes: what it computes, and what code it becomes."""

from __future__ import annotations

import re

import pytest

from fewtune.machine.byte_products import STEPS, ByteProducts, byte_product_kernel
from fewtune.runtime import dot_products
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import compiled, tvm
from tests import tuned_tiny


@pytest.mark.parametrize("form", [dot_products.VNNI, dot_products.AVX_VNNI])
def test_products_of_bytes_stay_in_registers(form: str) -> None:
    cpu = {dot_products.VNNI: "znver4", dot_products.AVX_VNNI: "alderlake"}[form]
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": 2})
    traits = CpuTraits.of(target)
    count = traits.registers - 2
    kernel = byte_product_kernel(2, count, traits.lanes("int32"), 1000, form)
    assembly = compiled(kernel, target=target).inspect_source("s").splitlines()
    products = [place for place, line in enumerate(assembly) if "vpdpbusd" in line]
    assert len(products) >= count
    loop = "\n".join(assembly[products[0] : products[-1] + 1])
    assert not re.search(r"\(%r", loop)


def test_products_of_bytes_are_summed() -> None:
    kernel = ByteProducts.of(tuned_tiny.target(), tuned_tiny.fingerprint().threads)
    if kernel is None:
        pytest.skip("this CPU has no instruction for products of bytes")
    sums = kernel.run()
    width = CpuTraits.of(tuned_tiny.target()).lanes("int32")
    # 1 + 2 + 3 + 4 a step, on what the accumulator began with.
    assert sums[0, 0] == 10 * STEPS
    assert sums[0, width] - sums[0, 0] == 0x01010101
    assert kernel.fastest_s(2) > 0
