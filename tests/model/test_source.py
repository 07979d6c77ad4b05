"""Models that are registered, and read again."""

from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper

from fewtune.errors import InputError
from fewtune.model.registration import ModelSource, check_name, name_from_path
from fewtune.model.source import add_model, load_registered
from tests import tiny_models

PROJECT = Path(__file__).resolve().parents[2]


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
    strange = name_from_path(Path("模型 🙂.onnx"))
    assert check_name(strange) == name_from_path(Path("/elsewhere/模型 🙂.onnx"))
    assert strange != name_from_path(Path("另一个.onnx"))


def test_model_that_is_not_registered(models):
    with pytest.raises(InputError, match="'net' is not registered"):
        load_registered(models, "net")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("light: squeezenet\nfile: model.onnx\n", "one of light and file"),
        ("", "one of light and file"),
        ("file: ../model.onnx\n", "beside model.yaml"),
        ("light: squeezenet\nseed: -1\n", "seed"),
        ("light: [\n", "not valid YAML"),
        ("light: squeezenet\nshapes: {data_0: [-1]}\n", "shapes.data_0.0"),
    ],
)
def test_registration_that_cannot_be_used(models, text, match):
    (models / "net").mkdir(parents=True)
    (models / "net" / "model.yaml").write_text(text)
    with pytest.raises(InputError, match=match) as caught:
        load_registered(models, "net")
    assert "\n" not in str(caught.value)
