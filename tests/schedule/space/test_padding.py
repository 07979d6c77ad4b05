"""Padding that is slow inside its reader is computed outside of it."""

import numpy as np
import onnx
import pytest

from fewtune.model.lower import lower
from fewtune.runtime.tvm import tvm
from fewtune.schedule.space.design_space import AHEAD, LOCATION, OUTSIDE
from fewtune.schedule.space.prior import Prior, pads_words
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.task.extract import extract_tasks
from tests.made import products
from tests.model.passes.test_integer_products import convolution
from tests.quantized_models import simplified
from tests.tuned_tiny import target

PADS = [1, 1, 1, 1]


def byte_convolution(model: onnx.ModelProto) -> tvm.IRModule:
    tasks = extract_tasks(lower(simplified(model), target(), "NHWC"))
    (found,) = [task.mod for task in tasks if task.info.anchor.startswith("integer_conv2d")]
    return found


@pytest.mark.parametrize(
    ("channels", "zero", "pads", "is_slow"),
    [
        # Zeros, or the channels are no whole words, or a zero point is read.
        (32, 0, PADS, False),
        (3, 0, PADS, True),
        (32, 119, PADS, True),
        (32, 119, [0, 0, 0, 0], False),
    ],
)
def test_what_chooses_byte_by_byte_is_slow_inside_its_reader(channels, zero, pads, is_slow):
    model, _ = convolution(channels, 32, 3, zero=zero, pads=pads)
    assert pads_words(byte_convolution(model)) == is_slow


@pytest.mark.parametrize("module", ["of bytes", "of one vector"])
def test_it_is_drawn_outside(module):
    given = products.convolution(14, 16, 4)
    if module == "of bytes":
        given = byte_convolution(convolution(32, 32, 3, pads=PADS)[0])
    space = SearchSpace(given, target())
    random, prior = np.random.default_rng(0), Prior(space)
    drawn = [prior.draw(random) for _ in range(32)]
    places = {
        decision
        for point in drawn
        for choice, decision in zip(
            space.programs[point.program].choices, point.decisions, strict=True
        )
        if choice.kind == LOCATION
    }
    assert places == {OUTSIDE, AHEAD}
