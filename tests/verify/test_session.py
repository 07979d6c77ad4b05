import numpy as np
import pytest
from onnx import helper

from fewtune.artifacts import TensorSpec
from fewtune.errors import InputError
from fewtune.verify.values import random_inputs, tensor_specs
from tests import tiny_models
from tests.made.outputs import run_onnxruntime


def test_tensor_specs_refuses_a_dynamic_shape():
    with pytest.raises(InputError, match="'input' is not static"):
        tensor_specs(tiny_models.dynamic_model())


def test_random_inputs_are_seeded_and_valid():
    specs = [
        TensorSpec(name="image", shape=[2, 50], dtype="float32"),
        TensorSpec(name="half", shape=[2, 50], dtype="float16"),
        TensorSpec(name="tokens", shape=[2, 50], dtype="int64"),
        TensorSpec(name="mask", shape=[2, 50], dtype="bool"),
        TensorSpec(name="pixels", shape=[2, 50], dtype="uint8"),
        TensorSpec(name="scalar", shape=[], dtype="float32"),
    ]
    arrays = random_inputs(specs, 7)
    for spec in specs:
        assert list(arrays[spec.name].shape) == spec.shape
        assert arrays[spec.name].dtype.name == spec.dtype
    assert set(np.unique(arrays["tokens"])) == {0, 1}
    assert set(np.unique(arrays["mask"])) == {False, True}
    assert arrays["pixels"].max() > 100
    again = random_inputs(specs, 7)
    assert all(np.array_equal(arrays[name], again[name]) for name in arrays)
    assert not np.array_equal(arrays["image"], random_inputs(specs, 8)["image"])


def test_model_that_onnxruntime_cannot_load_is_refused_in_one_line():
    node = helper.make_node("Strange", ["input"], ["output"], domain="nowhere")
    model = tiny_models.make_model([node], {"input": [1]}, {"output": [1]})
    model.opset_import.append(helper.make_opsetid("nowhere", 1))
    with pytest.raises(InputError, match="onnxruntime cannot load the model: .*Strange") as caught:
        run_onnxruntime(model, {}, 1)
    assert "\n" not in str(caught.value)
