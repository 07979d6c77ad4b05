"""Seeded weights of the zoo's networks."""

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from benchmarks.zoo.builder import GraphBuilder
from benchmarks.zoo.registry import ZOO, zoo_model
from fewtune.onnx_graph.graph import parameter_count
from fewtune.onnx_graph.weight_check import can_show_fault
from fewtune.verify.session import random_inputs, run_onnxruntime, tensor_specs
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


def test_normalisations_are_positive_and_activations_keep_their_size():
    model = small_network(0)
    for name, values in arrays(model).items():
        if name.endswith(("_scale", "_variance")):
            assert values.min() > 0.5
    specs, _ = tensor_specs(model)
    (output,) = run_onnxruntime(model, random_inputs(specs, 0), 1)
    assert 0.3 < np.sqrt(np.mean(output**2)) < 1.5


def test_without_values_only_small_weights_have_data():
    model = zoo_model("vgg19_bn", 0, values=False)
    assert model.ByteSize() < 1e6
    assert parameter_count(model) == ZOO["vgg19_bn"].parameters
    kinds = {tensor.data_type for tensor in model.graph.initializer}
    assert kinds == {TensorProto.FLOAT}


@pytest.mark.parametrize("name", SMALL)
def test_outputs_are_finite_and_depend_on_the_inputs(name):
    model = zoo_model(name, 0)
    assert can_show_fault(model)
    assert_outputs_tell_inputs_apart(model)
