"""What a user gives for inputs: formulas of dimensions, and sample arrays."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from fewtune.errors import InputError
from fewtune.onnx_graph.inputs import input_shapes, read_samples, sample_shapes
from tests.tiny_models import tiny_convolutional_model

IMAGE = np.ones((1, 3, 16, 16), np.float32)


def model(**inputs):
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, d) for n, d in inputs.items()]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    return helper.make_model(helper.make_graph([], "shapes", values, outputs))


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("past + 1", 17),
        ("past+length", 24),
    ],
)
def test_a_term_of_dimensions_is_computed(name, size):
    given = model(x=["past", "length"], mask=[1, name])
    assert input_shapes(given, {}, {"past": 16, "length": 8})["mask"] == [1, size]
    # A dimension may be bound by an input's shape; a size for the formula itself comes first.
    assert input_shapes(given, {"x": [16, 8]}, {})["mask"] == [1, size]
    assert input_shapes(given, {"x": [16, 8], "mask": [1, 3]}, {})["mask"] == [1, 3]


@pytest.mark.parametrize("name", ["past + other", "past - 16", "past."])
def test_other_names_stay_open(name):
    with pytest.raises(InputError, match="dynamic dimension"):
        input_shapes(model(x=["past"], mask=[name]), {}, {"past": 16})


def test_an_empty_dimension_may_be_confirmed():
    with pytest.raises(InputError, match="axis 0: give its shape, as in --shape x=\\?,3 "):
        input_shapes(model(x=[0, 3], z=[2]), {}, {})
    assert input_shapes(model(x=[0, 3], z=[2]), {"x": [0, 3]}, {}) == {"x": [0, 3], "z": [2]}


def test_samples_are_read(tmp_path):
    np.savez(tmp_path / "inputs.npz", input=IMAGE)
    samples = read_samples(tmp_path / "inputs.npz")
    np.testing.assert_array_equal(samples["input"], IMAGE)
    assert sample_shapes(tiny_convolutional_model(), samples, {}, ()) == {}


def test_samples_bind_dynamic_dimensions(tmp_path):
    model = tiny_convolutional_model(batch="batch")
    assert sample_shapes(model, {"input": np.repeat(IMAGE, 2, 0)}, {}, ()) == {
        "input": [2, 3, 16, 16]
    }


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"other": IMAGE}, "holds? 'other', which is no input"),
        ({}, "hold no array for input 'input'"),
        ({"input": IMAGE.astype(complex)}, "holds complex128"),
        ({"input": IMAGE.astype(np.float64)}, "holds float64, the model wants float32"),
        ({"input": IMAGE * np.nan}, "holds NaN"),
    ],
)
def test_unfitting_samples_are_refused(arrays, message):
    with pytest.raises(InputError, match=message):
        sample_shapes(tiny_convolutional_model(), arrays, {}, ())


@pytest.mark.parametrize("content", [b"no arrays", b"PK\x03\x04 nothing", b""])
def test_another_kind_of_file_is_refused(tmp_path, content):
    (tmp_path / "inputs.npz").write_bytes(content)
    with pytest.raises(InputError, match="numpy.savez"):
        read_samples(tmp_path / "inputs.npz")


def test_a_damaged_archive_is_refused(tmp_path):
    path = tmp_path / "inputs.npz"
    np.savez_compressed(path, input=np.random.default_rng(0).random((64, 64)))
    content = bytearray(path.read_bytes())
    content[200:260] = bytes(60)
    path.write_bytes(content)
    with pytest.raises(InputError, match="no .npz file of plain arrays"):
        read_samples(path)
