"""The kernels that measure the machine: what they compute, and what code they become."""

import re

import numpy as np
import pytest

from fewtune.machine.peak import STEPS, MultiplyAdd, PeakMeter, multiply_add_kernel
from fewtune.runtime import dot_products
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import compiled, tvm
from tests import tuned_tiny


def test_multiply_adds_are_computed():
    kernel = MultiplyAdd(tuned_tiny.target(), tuned_tiny.fingerprint().threads)
    # x -> x / 2 + 1 tends to 2, wherever it begins.
    np.testing.assert_array_equal(kernel.run(), 2.0)
    assert kernel.giga_a_second(2) > 0
    assert kernel.once_s() > 0


@pytest.mark.parametrize(
    ("form", "cpu", "instruction"),
    [
        (None, "znver4", "vfmadd"),
        (dot_products.VNNI, "znver4", "vpdpbusd"),
        (dot_products.AVX_VNNI, "alderlake", "vpdpbusd"),
    ],
)
def test_accumulators_stay_in_registers(form, cpu, instruction):
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": 2})
    traits = CpuTraits.of(target)
    count = traits.registers - 2
    kernel = multiply_add_kernel(2, count, traits.lanes("float32"), 1000, form)
    assembly = compiled(kernel, target=target).inspect_source("s").splitlines()
    adds = [place for place, line in enumerate(assembly) if instruction in line]
    assert len(adds) >= count
    # Neither its operands nor anything between the first and the last goes through memory.
    loop = "\n".join(assembly[adds[0] : adds[-1] + 1])
    assert not re.search(r"\(%r", loop)


def test_products_of_bytes_are_summed():
    kernel = MultiplyAdd.of_bytes(tuned_tiny.target(), tuned_tiny.fingerprint().threads)
    if kernel is None:
        pytest.skip("this CPU has no instruction for products of bytes")
    sums = kernel.run()
    width = CpuTraits.of(tuned_tiny.target()).lanes("int32")
    # 1 + 2 + 3 + 4 a step, on what the accumulator began with.
    assert sums[0, 0] == 10 * STEPS
    assert sums[0, width] - sums[0, 0] == 0x01010101


@pytest.mark.slow
def test_a_machine_is_measured():
    found = PeakMeter(tuned_tiny.target(), tuned_tiny.fingerprint().threads).measure()
    assert found.gflops > 0
