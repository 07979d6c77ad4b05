import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from fewtune.errors import InputError
from fewtune.model.light import light_model, light_names
from fewtune.onnx_graph.weight_check import can_show_fault
from tests.seeded_outputs import assert_outputs_tell_inputs_apart

# The others are larger than a test should be; they differ in size, not in kind.
SMALL = ["densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet"]


def test_light_names_lists_the_shipped_architectures():
    assert {"squeezenet", "resnet50", "vgg19"} <= set(light_names())
    assert light_names() == sorted(light_names())


def test_unknown_name_is_refused_with_the_list():
    with pytest.raises(InputError, match="'squeezenut'.*squeezenet"):
        light_model("squeezenut", 0)


def test_same_seed_gives_the_same_bytes_and_another_seed_others():
    first, again = light_model("squeezenet", 0), light_model("squeezenet", 0)
    assert first.SerializeToString() == again.SerializeToString()
    assert first.SerializeToString() != light_model("squeezenet", 1).SerializeToString()


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_every_weight_varies_and_only_data_is_an_input(name):
    model = light_model(name, 0)
    onnx.checker.check_model(model)
    assert model.ir_version >= 8
    assert len(model.graph.input) == 1
    assert not any(node.op_type == "ConstantOfShape" for node in model.graph.node)
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype == np.float32 and values.size > 1:
            assert values.min() < values.max(), tensor.name
    assert can_show_fault(model)


@pytest.mark.parametrize("name", ["resnet50", "densenet121"])
def test_normalization_scale_and_variance_are_positive(name):
    model = light_model(name, 3)
    values = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            assert values[node.input[1]].min() > 0
            assert values[node.input[4]].min() > 0


def test_shape_constants_stay_as_they_are():
    model = light_model("shufflenet", 0)
    shapes = {t.name: t for t in model.graph.initializer if t.data_type == onnx.TensorProto.INT64}
    targets = [node.input[1] for node in model.graph.node if node.op_type == "Reshape"]
    assert targets
    assert all(name in shapes for name in targets)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_outputs_are_finite_and_depend_on_the_inputs(name):
    assert_outputs_tell_inputs_apart(light_model(name, 0))
