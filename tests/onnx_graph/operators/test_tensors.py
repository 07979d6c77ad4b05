"""Spectra and indexing, compared with onnxruntime."""

import numpy as np
import pytest
from onnx import helper

from fewtune.errors import InputError
from fewtune.onnx_graph.operators.expand import EARLY, expand
from tests.expanded_models import assert_node, assert_same
from tests.tiny_models import make_model


def model_of(node, data, constants, opset=17):
    return make_model([node], {"x": list(data.shape)}, {"y": None}, constants, opset)


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def reversing(lengths):
    node = helper.make_node(
        "ReverseSequence", ["x", "lengths"], ["y"], "reverse", batch_axis=1, time_axis=0
    )
    return model_of(node, normal(4, 3, 2), {"lengths": np.array(lengths)})


def test_an_axis_is_reversed():
    assert_same(reversing([4, 4, 4]), {"x": normal(4, 3, 2)})


def test_sequences_of_different_lengths_are_refused_by_name():
    with pytest.raises(InputError, match="ReverseSequence node 'reverse' reverses sequences"):
        expand(reversing([4, 2, 3]), EARLY)


def test_a_split_with_an_empty_part_is_refused_by_name():
    with pytest.raises(InputError, match="Split node 'node' has a part without elements"):
        assert_node("Split", [normal(2, 4), np.array([4, 0])], ("a", "b"), "", (1,), axis=1)


def test_empty_parts_of_a_concatenation_are_left_out():
    parts = [normal(2, 3), np.zeros((2, 0), np.float32), normal(2, 1)]
    model = assert_node("Concat", parts, domain="", constants=(1,), axis=1)
    (node,) = model.graph.node
    assert len(node.input) == 2
