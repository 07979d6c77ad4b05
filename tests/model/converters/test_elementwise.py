"""Operators between convolutions keep the layout, and their results."""

from contextlib import nullcontext

import numpy as np
import pytest
from onnx.numpy_helper import to_array
from onnx.reference import ReferenceEvaluator

from fewtune.model.lower import lower
from fewtune.task.analysis import call_counts
from fewtune.tvm_compat.onnx_importer import with_converters
from tests import tuned_tiny
from tests.made.compiled import compiled, lowered, outputs
from tests.made.onnx_text import attributes as text_of
from tests.made.onnx_text import model_of
from tests.made.outputs import run_onnxruntime
from tests.tiny_models import random_weight


def between_convolutions(operator: str, constants: dict[str, float], attributes: dict) -> object:
    """Convolution, the operator, convolution; ``constants`` are its inputs after the first."""
    random = np.random.default_rng(4)
    return model_of(
        f"""(float[1,4,8,8] input) => (float[1,8,8,8] output) {{
            a = Conv <pads = [1, 1, 1, 1]> (input, first)
            b = {operator} {text_of(**attributes)} ({", ".join(["a", *constants])})
            output = Conv <pads = [1, 1, 1, 1]> (b, second)
        }}""",
        first=random_weight(random, 8, 4, 3, 3),
        second=random_weight(random, 8, 8, 3, 3),
        **{name: np.float32(value) for name, value in constants.items() if name},
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operator", "constants", "attributes"),
    [
        ("Clip", {"least": 0.0, "most": 0.5}, {}),
        ("LeakyRelu", {}, {"alpha": 0.1}),
        ("LeakyRelu", {}, {"alpha": 1.5}),
        ("HardSigmoid", {}, {"alpha": 0.3}),
        ("HardSwish", {}, {}),
    ],
)
def test_activations_leave_no_transposes(operator, constants, attributes):
    model = between_convolutions(operator, constants, attributes)
    module = lowered(model)
    transposes = sum(n for name, n in call_counts(module).items() if "transpose" in name)
    # One at each end of the network. A slope above 1 is no maximum, so TVM's converter is used.
    assert transposes == 2 or attributes.get("alpha") == 1.5
    data = np.random.default_rng(1).standard_normal((1, 4, 8, 8)).astype("float32")
    (expected,) = ReferenceEvaluator(model).run(None, {"input": data})
    (actual,) = compiled(module).outputs([data])
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("operator", "kernel"), [("Max", "maximum"), ("Min", "minimum")])
def test_max_and_min_of_two_activations_are_fused(operator, kernel):
    model = model_of(
        f"""(float[1,4,8,8] input) => (float[1,8,8,8] output) {{
            a = Conv (input, one)
            b = Conv (input, two)
            output = {operator} (a, b)
        }}""",
        one=random_weight(np.random.default_rng(0), 8, 4, 1, 1),
        two=random_weight(np.random.default_rng(1), 8, 4, 1, 1),
    )
    counts = call_counts(lower(model, tuned_tiny.target(), "NHWC"))
    assert counts[f"fused_conv2d_{kernel}"] == 1


def test_the_importer_is_restored_afterwards():
    from tvm.relax.frontend.onnx import onnx_frontend

    theirs = onnx_frontend._get_convert_map
    with pytest.raises(ZeroDivisionError), with_converters({}, lambda *_: nullcontext(), to_array):
        assert onnx_frontend._get_convert_map is not theirs
        raise ZeroDivisionError
    assert onnx_frontend._get_convert_map is theirs


@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("select_last_index", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_arg_max_of_equal_values_is_an_index(operator, select_last_index, dtype):
    limits = np.finfo(dtype) if dtype is np.float32 else np.iinfo(dtype)
    data = np.array([[limits.min] * 5, [limits.max] * 5, [1, 0, 1, 0, 1]], dtype)
    kind = "float" if dtype is np.float32 else np.dtype(dtype).name
    node = f"output = {operator} <axis = 1, select_last_index = {select_last_index}> (input)"
    model = model_of(f"({kind}[3,5] input) => (int64[3,1] output) {{{node}}}")
    ((actual,),) = outputs(model, [data])
    np.testing.assert_array_equal(actual, run_onnxruntime(model, {"input": data}, 1)[0])


def test_a_clip_by_constants_of_any_rank():
    bounds = {"least": np.zeros(1, np.float32), "most": np.ones(1, np.float32)}
    node = "[clip] output = Clip (input, least, most)"
    model = model_of(f"(float[1,4] input) => (float[1,4] output) {{{node}}}", **bounds)
    # Here, no optional step catches an exception of a converter.
    data = np.array([[-1, 0.5, 1, 2]], np.float32)
    (actual,) = compiled(lower(model, tuned_tiny.target(), "NHWC")).outputs([data])
    np.testing.assert_array_equal(actual, data.clip(0, 1))
