"""Softmax over rows of any length: those that fill no vectors are padded."""

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from fewtune.model.lower import lower
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import tvm
from fewtune.schedule.blocks import blocks_of
from tests import tuned_tiny
from tests.made.compiled import error_of, scheduled
from tests.made.onnx_text import model_of
from tests.onnx_graph.test_views import simplified
from tests.tiny_models import random_weight

BOUND = 1e-5


def softmax_model(shape: tuple[int, ...], axis: int = -1) -> ModelProto:
    """A softmax over numbers of many magnitudes."""
    text = f"""(float{list(shape)} x) => (float[] y) {{
        scaled = Mul (x, factor)
        y = Softmax <axis = {axis}> (scaled)
    }}"""
    return model_of(text, 13, factor=20 * random_weight(np.random.default_rng(0), *shape))


def rows_of(module: tvm.IRModule) -> set[int]:
    """Extents of the last axes of the buffers that a module's softmax writes."""
    (function,) = (f for v, f in module.functions_items() if v.name_hint == "softmax")
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": function}))
    written = [schedule.get(handle).writes[0].source for handle in blocks_of(schedule)]
    return {int(source.shape[-1]) for source in written}


@pytest.mark.parametrize("length", [17, 197])
def test_rows_that_fill_no_vectors_are_padded(length):
    model = softmax_model((2, 3, length))
    module = lower(simplified(model), tuned_tiny.target(), "NHWC")
    lanes = CpuTraits.of(tuned_tiny.target()).lanes("float32")
    assert -(-length // lanes) * lanes in rows_of(module)
    assert error_of(model, module) < BOUND
    assert error_of(model, scheduled(module)) < BOUND


@pytest.mark.parametrize("lowest", [-1e30, np.finfo(np.float32).min], ids=["low", "lowest"])
def test_rows_of_very_negative_numbers_are_right(lowest):
    model = softmax_model((1, 4, 19))
    nodes = [*model.graph.node]
    nodes[0].op_type = "Add"
    weight = model.graph.initializer[0]
    numbers = np.full((1, 4, 19), lowest, np.float32)
    weight.CopyFrom(onnx.numpy_helper.from_array(numbers, weight.name))
    module = lower(simplified(model), tuned_tiny.target(), "NHWC")
    assert error_of(model, scheduled(module)) < BOUND


@pytest.mark.parametrize(("shape", "axis"), [((2, 64), -1), ((2, 7), -1), ((1, 19, 32), 1)])
def test_other_softmaxes_are_lowered_by_tvm(shape, axis):
    model = softmax_model(shape, axis)
    module = lower(simplified(model), tuned_tiny.target(), "NHWC")
    assert rows_of(module) <= {*shape}
    assert error_of(model, scheduled(module)) < BOUND
