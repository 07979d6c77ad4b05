"""Schedules drawn for products of joined groups: all are right."""

import numpy as np
import pytest

from fewtune.model.lower import lower
from fewtune.runtime.tvm import build, tvm
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.task.extract import extract_tasks
from tests.model.passes.test_integer_products import convolution as byte_convolution
from tests.quantized_models import simplified
from tests.tuned_tiny import target

pytestmark = pytest.mark.slow

DRAWS = 2


def drawn(parameter, random):
    """Numbers for an argument."""
    shape, kind = [int(extent) for extent in parameter.shape], str(parameter.dtype)
    if kind.startswith("float"):
        return random.random(shape).astype(kind)
    return random.integers(0, 100, shape).astype(kind)


def test_drawn_schedules_are_right():
    model, _ = byte_convolution(32, 32, 3, group=8, pads=[1, 1, 1, 1])
    tasks = extract_tasks(lower(simplified(model), target(), "NHWC"))
    (task,) = [each for each in tasks if each.info.anchor == "integer_conv2d"]
    random = np.random.default_rng(0)
    given = [drawn(each, random) for each in task.mod["main"].params]

    def outputs(module):
        tensors = [tvm.runtime.tensor(each) for each in given]
        build(module, target())["main"](*tensors)
        return tensors[-1].numpy().astype(np.float64)

    expected = outputs(task.mod)
    space = SearchSpace(task.mod, target())
    for number in range(DRAWS):
        made = space.make(space.random_point(np.random.default_rng(number)))
        assert made.schedule is not None, made.reason
        size = np.abs(expected).max()
        np.testing.assert_allclose(outputs(made.schedule.mod), expected, atol=1e-5 * size)
