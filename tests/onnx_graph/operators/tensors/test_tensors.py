"""Spectra and indexing, compared with onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.expanded_models import assert_same
from tests.tiny_models import make_model


def model_of(node, data, constants, opset=17):
    return make_model([node], {"x": list(data.shape)}, {"y": None}, constants, opset)


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("shape", "onesided"), [((1, 128, 1), 1), ((2, 96), 0)])
def test_a_short_time_fourier_transform_is_a_product(shape, onesided):
    node = helper.make_node("STFT", ["x", "step", "window"], ["y"], "stft", onesided=onesided)
    constants = {"step": np.int64(16), "window": np.hanning(32).astype(np.float32)}
    data = normal(*shape)
    assert_same(model_of(node, data, constants), {"x": data})


def test_sequences_are_reversed_up_to_their_lengths():
    node = helper.make_node(
        "ReverseSequence", ["x", "lengths"], ["y"], "reverse", batch_axis=1, time_axis=0
    )
    data = normal(4, 3, 2)
    assert_same(model_of(node, data, {"lengths": np.array([4, 2, 3])}), {"x": data})


def test_a_constant_condition_compresses():
    node = helper.make_node("Compress", ["x", "wanted"], ["y"], "compress", axis=1)
    data = normal(3, 4)
    assert_same(model_of(node, data, {"wanted": np.array([True, False, True])}), {"x": data})
