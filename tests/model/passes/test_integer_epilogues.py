"""Quantized layers that differ only in scales and zero points share kernels."""

import numpy as np
import pytest

from fewtune.model.lower import lower
from fewtune.task.extract import extract_tasks
from tests.quantized_models import (
    assert_within_a_step,
    differences,
    model_of,
    random_bytes,
    simplified,
)
from tests.tuned_tiny import target

pytestmark = pytest.mark.slow

CHANNELS = 16


def blocks(count, zeros):
    """Residual blocks of one shape, each with scales and zero points of its own; a mean."""
    random = np.random.default_rng(0)
    shape = (1, CHANNELS, 6, 5)
    nodes, constants = "", {}

    def known(name, value):
        constants[name] = value
        return name

    def scaled(name, place):
        scale = np.float32(random.uniform(0.02, 0.05))
        return [known(f"{name}_scale", scale), known(f"{name}_zero", np.uint8(zeros[place]))]

    data, given = "x", scaled("x", 0)
    for number in range(count):
        weights = random_bytes(random, np.int8, CHANNELS, CHANNELS, 3, 3)
        factor = np.float32(random.uniform(0.5, 1) / 2**9)
        conv, total = f"c{number}", f"s{number}"
        inputs = [data, *given, known(f"w{number}", weights), known(f"f{number}", factor)]
        inputs += [known("weight_zero", np.int8(0)), *(between := scaled(conv, number))]
        nodes += f"{conv} = QLinearConv <pads = [1, 1, 1, 1]> ({', '.join(inputs)}) "
        after = scaled(total, number)
        inputs = [conv, *between, data, *given, *after]
        nodes += f"{total} = com.microsoft.QLinearAdd ({', '.join(inputs)}) "
        data, given = total, after
    kind = f"uint8{list(shape)}"
    model = model_of(f"({kind} x) => ({kind} {data}) {{{nodes}}}", **constants)
    return model, {"x": random_bytes(random, np.uint8, *shape)}


def test_layers_that_differ_by_scales_and_zero_points_are_one_task_that_writes_bytes():
    model, feeds = blocks(3, zeros=[119, 7, 130])
    lowered = lower(simplified(model), target(), "NHWC")
    found = [task for task in extract_tasks(lowered) if task.info.anchor == "integer_conv2d"]
    # The last one also turns its result into the model's layout.
    assert sorted(task.info.weight for task in found) == [1, 2]
    # Not floats for the kernel that sums them.
    assert {str(task.mod["main"].params[-1].dtype) for task in found} == {"uint8"}
    assert_within_a_step(model, feeds)


def test_a_mean_reads_bytes():
    constants = {"scale": np.float32(0.03), "zero": np.uint8(100)}
    nodes = "f = DequantizeLinear (x, scale, zero) y = GlobalAveragePool (f)"
    model = model_of(f"(uint8[1,5,7,3] x) => (float[1,5,1,1] y) {{{nodes}}}", **constants)
    feeds = {"x": random_bytes(np.random.default_rng(0), np.uint8, 1, 5, 7, 3)}
    (difference,), _ = differences(model, feeds)
    assert difference.max() <= 1e-5
