"""Schedules drawn for products in bfloat16, in float16 and of joined groups: all are right."""

import numpy as np
import pytest

from fewtune.model.lower import lower
from fewtune.model.lower_checked import has_bf16
from fewtune.runtime.tvm import build, tvm
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.task.extract import extract_tasks
from fewtune.util.bfloat16 import rounded
from tests.model.passes.test_bf16_products import convolution as bf16_convolution
from tests.model.passes.test_integer_products import convolution as byte_convolution
from tests.model.test_float16_weights import product
from tests.quantised_models import simplified
from tests.tuned_tiny import target

pytestmark = pytest.mark.slow

DRAWS = 4
PADS = [1, 1, 1, 1]
MODELS = {
    "bfloat16": (bf16_convolution(17, 33, 3, pads=PADS)[0], "bf16", "bf16_conv2d"),
    "halves": (product(2, 320, are_halves=True), "fp32", "half_weights_matmul"),
    "groups": (byte_convolution(32, 32, 3, group=8, pads=PADS)[0], "fp32", "integer_conv2d"),
}


def drawn(parameter, precision, random):
    """Numbers for an argument; of words and bits, bfloat16 numbers."""
    shape, kind = [int(extent) for extent in parameter.shape], str(parameter.dtype)
    if kind.startswith("float"):
        return random.random(shape).astype(kind)
    if precision == "bf16":
        pair = [*shape, 2] if kind == "int32" else shape
        bits = rounded(random.standard_normal(pair).astype(np.float32))
        return np.ascontiguousarray(bits).view(kind).reshape(shape)
    return random.integers(0, 100, shape).astype(kind)


@pytest.mark.parametrize("name", list(MODELS))
def test_drawn_schedules_are_right(name):
    model, precision, anchor = MODELS[name]
    if precision == "bf16" and not has_bf16(target()):
        pytest.skip("the processor has no bf16 products")
    lowered = lower(simplified(model), target(), "NHWC", precision=precision)
    (task,) = [each for each in extract_tasks(lowered, target()) if each.info.anchor == anchor]
    random = np.random.default_rng(0)
    given = [drawn(each, precision, random) for each in task.mod["main"].params]

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
