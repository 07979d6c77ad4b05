"""The zoo: every model has its published counts and is valid ONNX."""

import dataclasses

import onnx
import pytest

from benchmarks.zoo import registry
from benchmarks.zoo.registry import ZOO, verify, zoo_model, zoo_names
from fewtune.errors import InputError, VerificationError
from fewtune.onnx_graph.graph import detach_weights, static_shape

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", zoo_names())
def test_counts_are_the_published_ones(name):
    found = verify(name)
    assert found.parameters == ZOO[name].parameters
    assert found.multiply_adds > 1e8


@pytest.mark.parametrize("name", zoo_names())
def test_graph_is_valid_and_its_inferred_outputs_are_those_it_declares(name):
    model = zoo_model(name, 0, values=False)
    assert model.opset_import[0].version <= 17
    light_model, _ = detach_weights(model)
    onnx.checker.check_model(light_model, full_check=True)
    declared = {value.name: static_shape(value) for value in light_model.graph.output}
    assert all(declared.values())
    for value in light_model.graph.output:
        value.type.tensor_type.ClearField("shape")
    inferred = onnx.shape_inference.infer_shapes(light_model, data_prop=True)
    assert {value.name: static_shape(value) for value in inferred.graph.output} == declared


def test_detectors_decode_every_anchor():
    for name, anchors, classes in (("yolov3_mobilenet", 10647, 20), ("ssd512_resnet50", 6132, 21)):
        outputs = {
            value.name: static_shape(value)
            for value in zoo_model(name, 0, values=False).graph.output
        }
        assert outputs == {"boxes": [1, anchors, 4], "scores": [1, anchors, classes]}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"parameters": 1}, "has 1,235,496 parameters instead of 1 "),
        ({"multiply_adds": 0.34e9}, "takes 0.349 G multiply-adds instead of 0.340 G"),
    ],
)
def test_another_count_than_the_published_one_is_refused(monkeypatch, change, match):
    entry = dataclasses.replace(ZOO["squeezenet_v1_1"], **change)
    monkeypatch.setitem(registry.ZOO, "squeezenet_v1_1", entry)
    with pytest.raises(VerificationError, match=match) as caught:
        verify("squeezenet_v1_1")
    assert "\n" not in str(caught.value)


def test_unknown_name_is_refused_with_the_list():
    with pytest.raises(InputError, match="'vgg19'; the zoo has mobilenet_v2, .*convnext_tiny"):
        zoo_model("vgg19", 0)
