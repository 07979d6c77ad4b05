import os
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from fewtune.errors import InputError
from fewtune.model.registration import ModelSource, check_name, name_from_path
from fewtune.model.source import add_model, load_registered
from tests import tiny_models

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def models(tmp_path):
    return tmp_path / "models"


@pytest.fixture
def inbox(tmp_path):
    directory = tmp_path / "inbox"
    directory.mkdir()
    return directory


def refused(models, source, match, **arguments):
    """Add a model that must be refused: one line, nothing left behind."""
    with pytest.raises(InputError, match=match) as caught:
        add_model(str(source), models, **arguments)
    assert "\n" not in str(caught.value)
    assert not models.exists() or list(models.iterdir()) == []
    return str(caught.value)


def read(path):
    return ModelProto.FromString(path.read_bytes())


def external_location(path, location):
    """Let every external tensor of a model file point to ``location``."""
    model = read(path)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    path.write_bytes(model.SerializeToString())


# What works


def test_file_is_copied_and_loaded_again(models, inbox):
    model = tiny_models.tiny_convolutional_model()
    path = tiny_models.write_model(model, inbox, "My Net (v2).onnx")
    name = add_model(str(path), models)
    assert name == "my-net-v2"
    path.unlink()
    loaded = load_registered(models, name)
    assert loaded.model.SerializeToString() == model.SerializeToString()
    assert loaded.source == ModelSource(file="model.onnx")
    assert loaded.opset == tiny_models.OPSET
    assert len(loaded.sha256) == 64
    assert sorted(p.name for p in (models / name).iterdir()) == ["model.onnx", "model.yaml"]


def test_light_model_is_registered_by_name_and_seed(models):
    assert add_model("light:squeezenet", models, seed=3) == "squeezenet"
    assert (models / "squeezenet" / "model.yaml").read_text() == "light: squeezenet\nseed: 3\n"
    loaded = load_registered(models, "squeezenet")
    assert loaded.description == "light:squeezenet seed 3"
    assert loaded.sha256 == load_registered(models, "squeezenet").sha256
    add_model("light:squeezenet", models, name="other", seed=4)
    assert loaded.sha256 != load_registered(models, "other").sha256


@pytest.mark.parametrize("name", ["squeezenet", "resnet50"])
def test_registrations_of_the_project_load(name):
    loaded = load_registered(PROJECT / "models", name)
    assert loaded.source == ModelSource(light=name, seed=0)


def test_external_data_is_copied_with_its_folders(models, inbox):
    model = tiny_models.tiny_convolutional_model()
    path = tiny_models.write_with_external_data(model, inbox, location="data/weights.bin")
    name = add_model(str(path), models, name="big")
    assert (models / "big" / "data" / "weights.bin").is_file()
    (inbox / "data" / "weights.bin").unlink()
    loaded = load_registered(models, name)
    for given, found in zip(model.graph.initializer, loaded.model.graph.initializer, strict=True):
        assert np.array_equal(numpy_helper.to_array(given), numpy_helper.to_array(found))


def test_digest_covers_external_data(models, inbox):
    path = tiny_models.write_with_external_data(tiny_models.tiny_convolutional_model(), inbox)
    add_model(str(path), models, name="big")
    before = load_registered(models, "big").sha256
    weights = models / "big" / "weights.bin"
    content = bytearray(weights.read_bytes())
    content[0] ^= 1
    weights.write_bytes(content)
    assert load_registered(models, "big").sha256 != before


def test_dynamic_dimension_is_bound_by_shape_or_by_name(models, inbox):
    path = tiny_models.write_model(tiny_models.dynamic_model(), inbox)
    add_model(str(path), models, name="by-shape", shapes={"input": (2, 3, 16, 16)})
    assert load_registered(models, "by-shape").source.shapes == {"input": [2, 3, 16, 16]}
    add_model(str(path), models, name="by-name", dimensions={"batch": 4})
    assert load_registered(models, "by-name").source.dimensions == {"batch": 4}


@pytest.mark.parametrize(
    "make",
    [
        tiny_models.half_precision_model,
        tiny_models.integer_input_model,
        tiny_models.two_input_model,
        tiny_models.elementwise_model,
    ],
)
def test_unusual_but_supported_models_are_let_in(models, inbox, make):
    add_model(str(tiny_models.write_model(make(), inbox)), models, name="unusual")


def test_adding_the_same_again_is_no_error_but_another_model_is(models, inbox):
    path = tiny_models.write_model(tiny_models.tiny_convolutional_model(0), inbox)
    add_model(str(path), models, name="net")
    add_model(str(path), models, name="net")
    other = tiny_models.write_model(tiny_models.tiny_convolutional_model(1), inbox, "other.onnx")
    before = (models / "net" / "model.onnx").read_bytes()
    with pytest.raises(InputError, match="another model is registered as 'net'"):
        add_model(str(other), models, name="net")
    assert (models / "net" / "model.onnx").read_bytes() == before
    add_model(str(other), models, name="net", replace=True)
    assert (models / "net" / "model.onnx").read_bytes() == other.read_bytes()


def test_name_from_path_makes_a_plain_name():
    assert name_from_path(Path("/a/ResNet 50_v1.5.onnx")) == "resnet-50_v1.5"
    assert name_from_path(Path("__x__.onnx")) == "x"
    with pytest.raises(InputError, match="--name"):
        name_from_path(Path("éé.onnx"))


# What is refused


@pytest.mark.parametrize("name", ["", "A", "../up", "a/b", ".hidden", "a b", "-x", "a\n"])
def test_name_that_is_not_plain(models, name):
    with pytest.raises(InputError, match="not plain"):
        check_name(name)
    refused(models, "light:squeezenet", "not plain", name=name)


def test_no_such_file(models, inbox):
    refused(models, inbox / "none.onnx", "no such file: .*none.onnx")


def test_directory_instead_of_a_file(models, inbox):
    refused(models, inbox, "is not a file")


def test_unknown_light_model(models):
    refused(models, "light:squeezenut", "squeezenet")


def test_negative_seed(models):
    refused(models, "light:squeezenet", "seed -1", seed=-1)


@pytest.mark.parametrize(
    "content", [b"", b"hello, this is text\n", b"\x00" * 100, b"PK\x03\x04zip"]
)
def test_not_onnx(models, inbox, content):
    path = inbox / "model.onnx"
    path.write_bytes(content)
    refused(models, path, "not an ONNX model, or it is truncated")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_truncated(models, inbox, share):
    content = tiny_models.tiny_convolutional_model().SerializeToString()
    path = inbox / "model.onnx"
    path.write_bytes(content[: int(len(content) * share)])
    refused(models, path, "truncated")


def test_checker_failure_is_one_line(models, inbox):
    node = helper.make_node("Relux", ["input"], ["output"], name="strange")
    model = tiny_models.make_model([node], {"input": [1]}, {"output": [1]})
    path = tiny_models.write_model(model, inbox)
    refused(models, path, "fails the ONNX checker: .*Relux")


def test_graph_that_reads_an_unknown_value(models, inbox):
    node = helper.make_node("Relu", ["nowhere"], ["output"])
    model = tiny_models.make_model([node], {"input": [1]}, {"output": [1]})
    refused(models, tiny_models.write_model(model, inbox), "Relu node .* reads 'nowhere'")


def test_external_data_missing(models, inbox):
    path = tiny_models.write_with_external_data(tiny_models.tiny_convolutional_model(), inbox)
    (inbox / "weights.bin").unlink()
    refused(models, path, "weights.bin .*is missing")


def test_external_data_truncated(models, inbox):
    path = tiny_models.write_with_external_data(tiny_models.tiny_convolutional_model(), inbox)
    os.truncate(inbox / "weights.bin", 100)
    refused(models, path, "weights.bin is truncated")


@pytest.mark.parametrize("location", ["/etc/passwd", "../weights.bin", "a/../../weights.bin"])
def test_external_data_outside_the_folder(models, inbox, location):
    path = tiny_models.write_with_external_data(tiny_models.tiny_convolutional_model(), inbox)
    (inbox.parent / "weights.bin").write_bytes((inbox / "weights.bin").read_bytes())
    external_location(path, location)
    refused(models, path, "outside the model's folder")


def test_external_data_behind_a_link_out_of_the_folder(models, inbox):
    path = tiny_models.write_with_external_data(tiny_models.tiny_convolutional_model(), inbox)
    (inbox / "weights.bin").rename(inbox.parent / "elsewhere.bin")
    (inbox / "weights.bin").symlink_to(inbox.parent / "elsewhere.bin")
    refused(models, path, "outside the model's folder")


def test_external_data_is_checked_again_when_loaded(models, inbox):
    path = tiny_models.write_with_external_data(tiny_models.tiny_convolutional_model(), inbox)
    add_model(str(path), models, name="big")
    (models / "big" / "weights.bin").unlink()
    with pytest.raises(InputError, match="missing"):
        load_registered(models, "big")


def test_external_data_that_would_overwrite_the_registration(models, inbox):
    model = tiny_models.tiny_convolutional_model()
    path = tiny_models.write_with_external_data(model, inbox, "net.onnx", "model.yaml")
    refused(models, path, "may not lie in a file named model.yaml")


def test_dynamic_dimension_without_a_shape(models, inbox):
    path = tiny_models.write_model(tiny_models.dynamic_model(), inbox)
    message = refused(models, path, "input 'input' has a dynamic dimension 'batch'")
    assert "--shape input=1,3,16,16" in message


def test_unnamed_dynamic_dimensions_and_open_rank(models, inbox):
    node = helper.make_node("Relu", ["image"], ["output"])
    model = tiny_models.make_model([node], {"image": [None, 3, None, None]}, {"output": None})
    path = tiny_models.write_model(model, inbox)
    message = refused(models, path, "at axis 0")
    assert "--shape image=1,3,224,224" in message
    model = tiny_models.make_model([node], {"image": None}, {"output": None})
    message = refused(models, tiny_models.write_model(model, inbox), "has no shape")
    assert "--shape image=" in message


@pytest.mark.parametrize(
    ("shapes", "match"),
    [
        ({"inptu": [1, 3, 16, 16]}, "'inptu', which is no input .*input"),
        ({"input": [1, 3, 16]}, "has 3 dimensions, .*has 4: batchx3x16x16"),
        ({"input": [1, 4, 16, 16]}, "dimension 1 is fixed to 3"),
        ({"input": [0, 3, 16, 16]}, "1 or more"),
    ],
)
def test_shape_that_does_not_fit(models, inbox, shapes, match):
    path = tiny_models.write_model(tiny_models.dynamic_model(), inbox)
    refused(models, path, match, shapes=shapes)


@pytest.mark.parametrize(
    ("dimensions", "match"),
    [({"bacth": 1}, "'bacth' .*dynamic dimensions: batch"), ({"batch": 0}, "1 or more")],
)
def test_dimension_that_does_not_fit(models, inbox, dimensions, match):
    path = tiny_models.write_model(tiny_models.dynamic_model(), inbox)
    refused(models, path, match, dimensions=dimensions)


def test_dimension_given_twice_with_different_sizes(models, inbox):
    path = tiny_models.write_model(tiny_models.dynamic_model(), inbox)
    shapes = {"input": [1, 3, 16, 16]}
    refused(models, path, "given twice", shapes=shapes, dimensions={"batch": 2})


@pytest.mark.parametrize("element_type", [TensorProto.STRING, TensorProto.COMPLEX64])
def test_unsupported_element_type(models, inbox, element_type):
    node = helper.make_node("Identity", ["words"], ["output"])
    model = tiny_models.make_model(
        [node], {"words": [1]}, {"output": [1]}, element_type=element_type
    )
    kind = TensorProto.DataType.Name(element_type).lower()
    message = refused(models, tiny_models.write_model(model, inbox), f"input 'words' holds {kind}")
    assert "float32" in message


@pytest.mark.parametrize("kind", ["sequence", "map", "optional"])
def test_values_that_are_no_tensors(models, inbox, kind):
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [1])
    value_type = {
        "sequence": lambda: helper.make_sequence_type_proto(tensor),
        "map": lambda: helper.make_map_type_proto(TensorProto.INT64, tensor),
        "optional": lambda: helper.make_optional_type_proto(tensor),
    }[kind]()
    model = tiny_models.elementwise_model()
    model.graph.input.append(helper.make_value_info("extra", value_type))
    refused(models, tiny_models.write_model(model, inbox), f"input 'extra' is a.* {kind}")


def test_model_without_inputs_or_outputs(models, inbox):
    model = tiny_models.elementwise_model()
    del model.graph.output[:]
    refused(models, tiny_models.write_model(model, inbox), "no outputs")
    constant = helper.make_node("Relu", ["weight"], ["output"])
    weights = {"weight": np.ones(3, np.float32)}
    model = tiny_models.make_model([constant], {}, {"output": [3]}, weights)
    refused(models, tiny_models.write_model(model, inbox), "no inputs")


def test_failed_copy_leaves_nothing(models, inbox, monkeypatch):
    path = tiny_models.write_model(tiny_models.tiny_convolutional_model(), inbox)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(Exception, match="No space left on device"):
        add_model(str(path), models, name="net")
    assert list(models.iterdir()) == []


# Registrations that cannot be read


def test_model_that_is_not_registered(models):
    with pytest.raises(InputError, match="'net' is not registered"):
        load_registered(models, "net")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("light: squeezenet\nsede: 0\n", "sede"),
        ("light: squeezenet\nfile: model.onnx\n", "one of light, zoo and file"),
        ("", "one of light, zoo and file"),
        ("light: squeezenet\nzoo: vgg19_bn\n", "one of light, zoo and file"),
        ("file: ../model.onnx\n", "beside model.yaml"),
        ("light: squeezenet\nseed: -1\n", "seed"),
        ("light: [\n", "not valid YAML"),
        ("- light\n", "dictionary|object"),
        ("light: squeezenet\nshapes: {data_0: [0]}\n", "shapes.data_0.0"),
    ],
)
def test_registration_that_cannot_be_used(models, text, match):
    (models / "net").mkdir(parents=True)
    (models / "net" / "model.yaml").write_text(text)
    with pytest.raises(InputError, match=match) as caught:
        load_registered(models, "net")
    assert "\n" not in str(caught.value)
