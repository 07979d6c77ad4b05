"""Models that cannot be registered: one sentence, and nothing is left behind."""

import os

import numpy as np
import pytest
from onnx import TensorProto, helper

from fewtune.errors import InputError
from fewtune.model.registration import check_name
from fewtune.model.source import add_model, load_registered
from tests import tiny_models
from tests.made.onnx_text import model_of
from tests.made.registering import external_location, refused


@pytest.mark.parametrize("name", ["", "A", "../up", "a/b", ".hidden", "a b", "-x", "a\n"])
def test_name_that_is_not_plain(models, name):
    with pytest.raises(InputError, match="not plain"):
        check_name(name)
    refused(models, "light:squeezenet", "not plain", name=name)


@pytest.mark.parametrize(
    ("source", "given", "match"),
    [
        ("none.onnx", {}, "no such file: .*none.onnx"),
        ("", {}, "is not a file"),
        ("light:squeezenut", {}, "squeezenet"),
        ("light:squeezenet", {"seed": -1}, "seed -1"),
    ],
)
def test_a_source_that_is_none(models, inbox, source, given, match):
    refused(models, source if ":" in source else inbox / source, match, **given)


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
    model = model_of("(float[1] input) => (float[1] output) {[strange] output = Relux (input)}")
    path = tiny_models.write_model(model, inbox)
    refused(models, path, "fails the ONNX checker: .*Relux")


@pytest.mark.parametrize("operator", ["LayerNormalization", "SimplifiedLayerNormalization"])
def test_norms_of_onnxruntimes_optimizer_are_accepted(models, inbox, operator):
    node = f"[norm] output = {operator} (input, scale)"
    text = f"(float[2,4] input) => (float[2,4] output) {{{node}}}"
    model = model_of(text, 14, scale=np.ones(4, np.float32))
    add_model(str(tiny_models.write_model(model, inbox)), models, "normal")


def test_graph_that_reads_an_unknown_value(models, inbox):
    model = model_of("(float[1] input) => (float[1] output) {output = Relu (nowhere)}")
    path = tiny_models.write_model(model, inbox)
    refused(models, path, "input 'nowhere' of node: .*Relu is not output")


def test_external_data_missing_or_truncated(models, inbox):
    path = tiny_models.write_with_external_data(tiny_models.tiny_convolutional_model(), inbox)
    os.truncate(inbox / "weights.bin", 100)
    refused(models, path, "weights.bin is truncated")
    (inbox / "weights.bin").unlink()
    refused(models, path, "weights.bin .*is missing")


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
    assert "--shape input=batch,3,16,16" in message


def test_unnamed_dynamic_dimensions_and_open_rank(models, inbox):
    model = model_of("(float[?,3,?,?] image) => (float[] output) {output = Relu (image)}")
    path = tiny_models.write_model(model, inbox)
    message = refused(models, path, "at axis 0")
    assert "--shape image=?,3,?,?" in message
    model = model_of("(float[] image) => (float[] output) {output = Relu (image)}")
    message = refused(models, tiny_models.write_model(model, inbox), "has no shape")
    assert "--shape image=" in message


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"shapes": {"inptu": [1, 3, 16, 16]}}, "'inptu', which is no input .*input"),
        ({"shapes": {"input": [1, 3, 16]}}, "has 3 dimensions, .*has 4: batchx3x16x16"),
        ({"shapes": {"input": [1, 4, 16, 16]}}, "dimension 1 is fixed to 3"),
        ({"shapes": {"input": [0, 3, 16, 16]}}, "1 or more"),
        ({"dimensions": {"bacth": 1}}, "'bacth' .*dynamic dimensions: batch"),
        ({"dimensions": {"batch": 0}}, "1 or more"),
        ({"shapes": {"input": [1, 3, 16, 16]}, "dimensions": {"batch": 2}}, "given twice"),
    ],
)
def test_sizes_that_do_not_fit(models, inbox, given, match):
    path = tiny_models.write_model(tiny_models.dynamic_model(), inbox)
    refused(models, path, match, **given)


@pytest.mark.parametrize("element_type", [TensorProto.STRING, TensorProto.COMPLEX64])
def test_unsupported_element_type(models, inbox, element_type):
    kind = TensorProto.DataType.Name(element_type).lower()
    model = model_of(f"({kind}[1] words) => ({kind}[1] output) {{output = Identity (words)}}")
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
    text = "() => (float[3] output) {output = Relu (weight)}"
    model = model_of(text, weight=np.ones(3, np.float32))
    refused(models, tiny_models.write_model(model, inbox), "no inputs")


def test_failed_copy_leaves_nothing(models, inbox, monkeypatch):
    path = tiny_models.write_model(tiny_models.tiny_convolutional_model(), inbox)

    def full(*_):
        raise OSError(28, "no space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(Exception, match="no space left on device"):
        add_model(str(path), models, name="net")
    assert list(models.iterdir()) == []
