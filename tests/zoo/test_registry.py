"""The zoo: every model has its published counts, is valid ONNX, and says something."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fewtune.artifacts import TensorSpec
from fewtune.errors import InputError, VerificationError
from fewtune.model.reference import random_inputs, run_onnxruntime, tensor_specs
from fewtune.model.registration import ModelSource, check_name
from fewtune.model.source import add_model, load_registered
from fewtune.onnx_graph.graph import detach_weights, parameter_count, static_shape
from fewtune.onnx_graph.weight_check import constant_weights
from fewtune.zoo import registry
from fewtune.zoo.builder import GraphBuilder
from fewtune.zoo.count import multiply_adds
from fewtune.zoo.onnx_light import light_names
from fewtune.zoo.registry import ZOO, count, verify, zoo_model, zoo_names
from pipelines.cli import main
from stages.paths import Places
from tests.pipelines.test_cli import project, refused  # noqa: F401 (project is a fixture)
from tests.seeded_outputs import assert_outputs_tell_inputs_apart
from tests.tiny_models import make_model, random_weight

pytestmark = pytest.mark.slow

# Small and varied enough to be run: depthwise convolutions, an encoder, one of the onnx package.
SMALL = ["mobilenet_v2", "bert_mini", "squeezenet_v1_1"]


@pytest.mark.parametrize("name", zoo_names())
def test_counts_are_the_published_ones(name):
    found = verify(name)
    assert found.parameters == ZOO[name].parameters
    assert found.multiply_adds > 1e8
    assert check_name(name) == name


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


# Counting


def test_multiply_adds_of_each_operator_are_those_done_by_hand():
    generator = np.random.default_rng(0)
    weights = {
        "grouped": random_weight(generator, 6, 2, 3, 3),
        "transposed": random_weight(generator, 6, 5, 2, 2),
        "left": random_weight(generator, 7, 3),
        "right": random_weight(generator, 4, 7),
        "matrix": random_weight(generator, 8, 9),
    }
    nodes = [
        helper.make_node("Conv", ["image", "grouped"], ["a"], group=2, pads=[1] * 4),
        helper.make_node("ConvTranspose", ["a", "transposed"], ["b"], strides=[2, 2]),
        helper.make_node("Gemm", ["left", "right"], ["c"], transA=1, transB=1),
        helper.make_node("MatMul", ["rows", "matrix"], ["d"]),
        helper.make_node("Relu", ["d"], ["e"]),
    ]
    inputs = {"image": [1, 4, 10, 10], "rows": [2, 5, 8]}
    outputs = {"b": [1, 5, 20, 20], "c": [3, 4], "e": [2, 5, 9]}
    model = make_model(nodes, inputs, outputs, weights)
    products = 6 * 100 * 2 * 9, 6 * 100 * 5 * 4, 3 * 4 * 7, 2 * 5 * 9 * 8
    assert multiply_adds(model) == sum(products)


def test_unknown_shape_cannot_be_counted():
    node = helper.make_node("MatMul", ["rows", "matrix"], ["product"], name="last")
    weights = {"matrix": np.ones((8, 9), np.float32)}
    model = make_model([node], {"rows": ["batch", 8]}, {"product": ["batch", 9]}, weights)
    with pytest.raises(InputError, match="MatMul 'last' .* the shape of 'rows' is not known"):
        multiply_adds(model)


# Weights


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
def test_outputs_are_finite_and_tell_inputs_apart(name):
    model = zoo_model(name, 0)
    assert constant_weights(model) == []
    assert_outputs_tell_inputs_apart(model)


# Decoding


def run_with(name, *values):
    """Outputs of a detector by name, and values inside it that are 1 x anchors x something."""
    model = zoo_model(name, 0)
    outputs = [value.name for value in model.graph.output]
    for value in values:
        model.graph.output.append(helper.make_tensor_value_info(value, TensorProto.FLOAT, None))
    specs = [TensorSpec(name="image", shape=count(name).inputs["image"], dtype="float32")]
    found = run_onnxruntime(model, random_inputs(specs, 0), 2)
    return {key: array[0] for key, array in zip([*outputs, *values], found, strict=True)}


def sigmoid(value):
    return 1 / (1 + np.exp(-value))


# An anchor in the middle of the coarsest scale, one on the next, the last on the finest: its index,
# the stride, column and row of its cell, and its size.
YOLO_ANCHORS = [
    (3 * (13 * 5 + 2) + 1, 32, 2, 5, (156, 198)),
    (3 * (169 + 26 * 1 + 7) + 2, 16, 7, 1, (59, 119)),
    (10646, 8, 51, 51, (33, 23)),
]


def test_yolo_boxes_and_scores_are_those_of_the_paper():
    found = run_with("yolov3_mobilenet", "predictions")
    assert found["scores"].std() > 0.01
    for index, stride, column, row, size in YOLO_ANCHORS:
        raw = found["predictions"][index]
        center = (sigmoid(raw[:2]) + [column, row]) * stride
        half = np.exp(raw[2:4]) * size / 2
        expected = np.concatenate([center - half, center + half])
        assert found["boxes"][index] == pytest.approx(expected, rel=1e-3, abs=1e-2)
        expected = sigmoid(raw[4]) * sigmoid(raw[5:])
        assert found["scores"][index] == pytest.approx(expected, rel=1e-3)


# The first anchor of the first cell, the larger square of a cell of the second scale, a wide one
# and a tall one there, the only large square of the last scale: index, center and size.
SSD_ANCHORS = [
    (0, (8, 8), (51.2, 51.2)),
    (4096 + 6 * (16 * 3 + 2) + 1, (80, 112), (np.sqrt(102.4 * 189.4),) * 2),
    (4096 + 6 * (16 * 3 + 2) + 2, (80, 112), (102.4 * np.sqrt(2), 102.4 / np.sqrt(2))),
    (4096 + 6 * (16 * 3 + 2) + 5, (80, 112), (102.4 / np.sqrt(3), 102.4 * np.sqrt(3))),
    (6129, (256, 256), (np.sqrt(450.6 * 492),) * 2),
]


def test_ssd_boxes_are_those_of_the_paper():
    found = run_with("ssd512_resnet50", "offsets")
    assert found["scores"].sum(axis=1) == pytest.approx(1, rel=1e-3)
    for index, anchor_center, anchor_size in SSD_ANCHORS:
        raw = found["offsets"][index]
        center = anchor_center + 0.1 * raw[:2] * anchor_size
        half = np.exp(0.2 * raw[2:]) * anchor_size / 2
        expected = np.concatenate([center - half, center + half])
        assert found["boxes"][index] == pytest.approx(expected, rel=1e-3, abs=1e-2)


# Registering


def test_zoo_model_is_registered_by_name_and_seed(tmp_path):
    assert add_model("zoo:bert_mini", tmp_path, seed=3) == "bert_mini"
    assert (tmp_path / "bert_mini" / "model.yaml").read_text() == "zoo: bert_mini\nseed: 3\n"
    loaded = load_registered(tmp_path, "bert_mini")
    assert loaded.source == ModelSource(zoo="bert_mini", seed=3)
    assert loaded.description == "zoo:bert_mini seed 3"
    assert loaded.model.SerializeToString() == zoo_model("bert_mini", 3).SerializeToString()


def test_unknown_zoo_model_and_negative_seed_leave_nothing(tmp_path):
    with pytest.raises(InputError, match="no zoo model is called 'vgg'"):
        add_model("zoo:vgg", tmp_path / "models")
    with pytest.raises(InputError, match="seed -1 is negative"):
        add_model("zoo:bert_mini", tmp_path / "models", seed=-1)
    assert not (tmp_path / "models").exists()


# The command


def test_command_lists_the_zoo_anywhere(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["zoo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == zoo_names()
    (line,) = (line for line in lines if line.startswith("bert_mini "))
    assert "3 of 1x128" in line
    assert "11.171" in line


def test_command_registers_and_lists_the_models(project, capsys):  # noqa: F811
    assert main(["zoo", "vgg19_bn", "densenet121", "vgg19_bn", "--seed", "2"]) == 0
    places = Places(project)
    assert places.registered() == ["densenet121", "squeezenet", "vgg19_bn"]
    assert places.registration("vgg19_bn").read_text() == "zoo: vgg19_bn\nseed: 2\n"
    assert "models: [squeezenet, vgg19_bn, densenet121]" in places.params.read_text()
    assert "tune with: fewtune run vgg19_bn densenet121" in capsys.readouterr().out
    assert "another model is registered" in refused(capsys, "zoo", "vgg19_bn")
    assert main(["zoo", "vgg19_bn", "--replace"]) == 0
    assert places.registration("vgg19_bn").read_text() == "zoo: vgg19_bn\nseed: 0\n"


def test_command_refuses_an_unknown_name_before_it_makes_anything(project, capsys):  # noqa: F811
    line = refused(capsys, "zoo", "vgg19_bn", "vgg20")
    assert line.startswith("no zoo model is called 'vgg20'; the zoo has mobilenet_v2, ")
    assert Places(project).registered() == ["squeezenet"]
    hint = refused(capsys, "run", "vgg19_bn")
    assert "register it with `fewtune zoo vgg19_bn`" in hint


def test_command_writes_files_instead(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert "give some, or --all" in refused(capsys, "zoo", "--output", "onnx")
    assert main(["zoo", "squeezenet_v1_1", "--output", "onnx"]) == 0
    assert capsys.readouterr().out == "onnx/squeezenet_v1_1.onnx: 4.9 MB\n"
    model = onnx.load("onnx/squeezenet_v1_1.onnx")
    assert parameter_count(model) == ZOO["squeezenet_v1_1"].parameters


def test_names_that_the_onnx_package_has_too_mean_the_zoo_to_the_command(project, capsys):  # noqa: F811
    assert "densenet121" in light_names()
    assert "`fewtune zoo densenet121`" in refused(capsys, "run", "densenet121")
