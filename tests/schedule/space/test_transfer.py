"""Traces moved between awkward pairs of tasks, their results compared with an unscheduled build."""

import numpy as np
import pytest
from tvm import te, topi

from fewtune.measure.measurer import module_specs
from fewtune.runtime.tvm import build, tvm
from fewtune.schedule.space.search_space import Made, SearchSpace
from fewtune.schedule.space.transfer import Donation, move, nearest_tile
from fewtune.task.extract import task_module
from tests import tuned_tiny
from tests.made.products import convolution, matrix_product


def depthwise(size: int, channels: int, stride: int = 1) -> tvm.IRModule:
    """A depthwise convolution in NHWC."""
    data = te.placeholder((1, size, size, channels), name="data")
    weight = te.placeholder((3, 3, channels, 1), name="weight")
    out = topi.nn.depthwise_conv2d_nhwc(data, weight, stride, 1, 1)
    return task_module(te.create_prim_func([data, weight, topi.nn.relu(out)]))


def results(module: tvm.IRModule) -> np.ndarray:
    """What a module computes from seeded inputs."""
    built = build(module, tuned_tiny.target())
    random = np.random.default_rng(0)
    shapes = [shape for shape, _ in module_specs(module)]
    inputs = [random.standard_normal(shape).astype("float32") for shape in shapes[:-1]]
    arguments = [tvm.runtime.tensor(value) for value in [*inputs, np.zeros(shapes[-1], "float32")]]
    built["main"](*arguments)
    return arguments[-1].numpy()


def moved(donor: tvm.IRModule, dependent: tvm.IRModule, seed: int) -> Made:
    """A random schedule of one task, moved to another."""
    target = tuned_tiny.target()
    source = SearchSpace(donor, target)
    made = source.make(source.random_point(np.random.default_rng(seed)), seed)
    assert made.schedule is not None
    return move([Donation.of(made.schedule.trace)], SearchSpace(dependent, target))[0]


PAIRS = {
    "strides": (convolution(14, 16, 32), convolution(14, 16, 32, stride=2)),
    "padding": (convolution(14, 16, 32), convolution(14, 16, 32, kernel=3, pad=False)),
    "tails": (convolution(14, 16, 32), convolution(14, 16, 32, tail="residual")),
    "prime extents": (convolution(14, 16, 32), convolution(13, 17, 19)),
    "depthwise": (depthwise(14, 32), depthwise(7, 24, stride=2)),
    "matrix products": (matrix_product(32, 64, 48), matrix_product(7, 100, 31)),
    "a vector": (matrix_product(32, 64, 48), matrix_product(1, 96, 64)),
}


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS)
def test_a_moved_schedule_computes_the_same(pair):
    donor, dependent = PAIRS[pair]
    expected = results(dependent)
    applied = 0
    for seed in (1, 2):
        result = moved(donor, dependent, seed)
        if result.schedule is None:
            # Helper blocks may differ; what does not fit says why.
            assert result.reason
            continue
        applied += 1
        np.testing.assert_allclose(results(result.schedule.mod), expected, rtol=1e-4, atol=1e-4)
    assert applied, "neither of two schedules could be moved"


def test_what_cannot_be_moved_says_why():
    result = moved(convolution(14, 16, 32), matrix_product(32, 64, 48), 1)
    assert result.schedule is None
    assert result.reason == "no design space of the same form"


def test_a_tile_goes_to_the_nearest_factorisation_innermost_first():
    assert nearest_tile((4, 1, 1, 16), 128, 64) == (8, 1, 1, 16)
    assert nearest_tile((1, 2, 7, 1), 13, 64) == (1, 1, 13, 1)
    assert nearest_tile((2, 64), 7, 4) == (7, 1)


def test_a_vector_stays_a_vector():
    # 36, 24 and 18 are nearer to 32, but no whole registers.
    assert nearest_tile((1, 3, 1, 32), 144, 64) == (3, 3, 1, 16)
    # Half a register if a whole one does not fit; the nearest factor if neither does.
    assert nearest_tile((4, 1, 1, 16), 24, 64) == (3, 1, 1, 8)
    assert nearest_tile((1, 1, 1, 16), 13, 64) == (1, 1, 1, 13)
    # A factor of two is no vector, so the nearest factor is taken.
    assert nearest_tile((4, 1, 1, 2), 9, 64) == (3, 1, 1, 3)
