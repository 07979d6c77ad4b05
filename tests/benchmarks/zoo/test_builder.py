"""Seeded weights of the zoo's networks."""

import numpy as np
import pytest
from onnx import numpy_helper

from benchmarks.zoo.builder import GraphBuilder
from benchmarks.zoo.registry import zoo_model
from fewtune.onnx_graph.weight_check import can_show_fault
from tests.seeded_outputs import assert_outputs_tell_inputs_apart

pytestmark = pytest.mark.slow


# Small models of different kinds: depthwise convolutions, an encoder, one of the onnx package.
SMALL = ["mobilenet_v2", "bert_mini", "squeezenet_v1_1"]


def small_network(seed, first="first"):
    builder = GraphBuilder("small", seed)
    value = builder.input("image", (1, 3, 8, 8))
    for name in (first, "second"):
        value = builder.convolution(value, name, 64, kernel=3)
        value = builder.batch_normalization(value, f"{name}_normalization")
        value = builder.activation("Relu", value, f"{name}_relu")
    builder.output(value, (1, 64, 8, 8))
    return builder.model


def arrays(model):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def test_same_seed_gives_the_same_bytes_and_another_seed_others():
    for make in (small_network, lambda seed: zoo_model("mobilenet_v2", seed)):
        first, again = make(0), make(0)
        assert first.SerializeToString() == again.SerializeToString()
        assert first.SerializeToString() != make(1).SerializeToString()


def test_a_weight_depends_on_the_seed_and_its_name_alone():
    first, other = arrays(small_network(0)), arrays(small_network(0, first="zeroth"))
    assert np.array_equal(first["second_weight"], other["second_weight"])
    assert not np.array_equal(first["first_weight"], other["zeroth_weight"])


@pytest.mark.parametrize("name", SMALL)
def test_outputs_are_finite_and_depend_on_the_inputs(name):
    model = zoo_model(name, 0)
    assert can_show_fault(model)
    assert_outputs_tell_inputs_apart(model)
