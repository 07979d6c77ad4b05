"""Bytes that kernels of a quantised model write are judged by steps, each kernel by itself."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fewtune.verify.comparison import Expected, compare_steps
from fewtune.verify.intermediate import safe_outputs
from fewtune.verify.noise import is_quantised
from fewtune.verify.reference import Reference
from tests.quantized_models import quantized_network
from tests.verify.imported import Changed, imported


@pytest.fixture(scope="module")
def quantised(tmp_path_factory):
    return imported(quantized_network(tmp_path_factory.mktemp("quantised"), per_channel=True)[0])


@pytest.mark.slow
def test_kernels_write_the_expected_bytes(quantised):
    assert sum(tap.stepped for tap in quantised.reference.taps) >= 5
    assert "none by more" in quantised.note


def scaled(kernel: str, arguments: Sequence[Any]) -> None:
    """Every scale of a kernel is off by 1 %, which equals weights that are off by 1 %."""
    for tensor in arguments[:-1]:
        values = tensor.numpy()
        if kernel.startswith("fused_integer_conv2d") and values.dtype == np.float32:
            tensor.copyfrom(values * np.float32(1.01))


def swapped(kernel: str, arguments: Sequence[Any]) -> None:
    """Two filters are swapped."""
    if kernel.startswith("fused_integer_conv2d") and arguments[1].numpy().dtype == np.int32:
        values = arguments[1].numpy().copy()
        values[..., [0, 1]] = values[..., [1, 0]]
        arguments[1].copyfrom(values)


def shifted(kernel: str, arguments: Sequence[Any]) -> None:
    """A zero point is off by one: all bytes that a kernel reads are larger."""
    values = arguments[0].numpy()
    if kernel.startswith("fused_integer_conv2d") and values.dtype == np.uint8:
        arguments[0].copyfrom(np.minimum(values, 254) + np.uint8(1))


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [scaled, swapped, shifted])
def test_a_small_fault_is_refused(quantised, wrong):
    library = Changed(quantised.compiled, wrong)
    assert quantised.reference.check_library(library, ["x"]).allowances > 1


@pytest.mark.slow
def test_a_reference_keeps_how_taps_are_judged(quantised, tmp_path):
    reference = quantised.reference
    reference.write(tmp_path)
    read = Reference.read(tmp_path)
    assert [tap[2:] for tap in read.taps] == [tap[2:] for tap in reference.taps]


def test_few_bytes_may_be_off_by_one():
    values = np.full(1000, 7, np.uint8)
    expected = Expected("v", values, np.zeros(1000, "f4"))
    few, many, far = values.copy(), values.copy(), values.copy()
    few[:5], many[:6], far[3] = 8, 8, 9
    assert compare_steps(values, expected).allowances == 0
    assert compare_steps(few, expected).allowances <= 1
    assert "6 of 1000 elements differ" in compare_steps(many, expected).text
    assert compare_steps(far, expected).allowances == 2


def test_fused_values_are_not_made_outputs(tmp_path):
    model, _ = quantized_network(tmp_path)
    assert is_quantised(model)
    kinds = {name: node.op_type for node in model.graph.node for name in node.output}
    opened = {kinds[name] for name in safe_outputs(model)}
    assert "QuantizeLinear" in opened
    assert opened.isdisjoint({"DequantizeLinear", "Conv", "Relu", "Add"})
