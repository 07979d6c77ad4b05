"""The zoo: every model has its published counts and is valid ONNX."""

import dataclasses

import numpy as np
import onnx
import pytest

from benchmarks.zoo import registry
from benchmarks.zoo.registry import ZOO, count, verify, zoo_model, zoo_names
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


def unit(inputs, outputs, kernel, size):
    """Parameters and multiply-adds of a convolution without bias and its normalisation."""
    weights = inputs * outputs * kernel * kernel
    return np.array([weights + 4 * outputs, weights * size * size])


def head(inputs, outputs, kernel, size):
    """The same of a convolution with bias."""
    weights = inputs * outputs * kernel * kernel
    return np.array([weights + outputs, weights * size * size])


def test_the_yolo_head_is_the_sum_of_its_layers_and_mobilenet():
    """No figure is published: MobileNet 1.0 has 4,253,864 parameters with its classifier."""
    total = np.array([4_253_864 - 1_025_000, 0])
    size, channels = 208, 32
    total[1] += 3 * 32 * 9 * size**2
    strides = {2: 128, 4: 256, 6: 512, 12: 1024}
    widths = [64, 128, 128, 256, 256, *[512] * 6, 1024, 1024]
    for layer, width in enumerate(widths, start=1):
        size //= 2 if layer in strides else 1
        total[1] += channels * (9 + width) * size**2
        channels = width
    for inputs, width, size in ((1024, 512, 13), (768, 256, 26), (384, 128, 52)):
        total += unit(inputs, width, 1, size) + 2 * unit(2 * width, width, 1, size)
        total += 3 * unit(width, 2 * width, 3, size) + head(2 * width, 75, 1, size)
    total += unit(512, 256, 1, 13) + unit(256, 128, 1, 26)
    found = count("yolov3_mobilenet")
    assert [found.parameters, found.multiply_adds] == total.tolist()


def test_the_ssd_head_is_the_sum_of_its_layers_and_resnet():
    """No figure is published: ResNet 50 V1 has 25,629,032 parameters with its classifier."""
    total = np.array([25_629_032 - 2_049_000, 0])
    # All of ResNet's feature maps grow with the area of the image, from 224 to 512.
    total[1] = (count("resnet50_v1").multiply_adds - 2_048_000) * 512**2 // 224**2
    inputs = 2048
    for width, size in ((512, 16), (512, 8), (256, 4), (256, 2)):
        total += unit(inputs, width, 1, size) + unit(width, width, 3, size // 2)
        inputs = width
    scales = ((1024, 32, 4), (2048, 16, 6), (512, 8, 6), (512, 4, 6), (256, 2, 4), (256, 1, 4))
    for inputs, size, anchors in scales:
        total += head(inputs, anchors * 21, 3, size) + head(inputs, anchors * 4, 3, size)
    found = count("ssd512_resnet50")
    assert [found.parameters, found.multiply_adds] == total.tolist()


def test_bert_mini_with_its_pretraining_heads_has_the_published_size():
    transform = 256 * 256 + 256 + 2 * 256
    heads = transform + 30522 + 2 * 256 + 2
    assert round((ZOO["bert_mini"].parameters + heads) / 1e6, 1) == 11.3


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
