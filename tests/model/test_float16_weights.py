"""Products of few rows whose weights are exact in float16: the results are the same."""

import numpy as np
import pytest
from onnx import helper

from fewtune.model.float16_weights import FEATURES
from fewtune.model.lower import lower
from fewtune.runtime.executable import CompiledModel, build_executable
from fewtune.runtime.tvm import has_feature
from fewtune.task.extract import extract_tasks
from fewtune.verify.session import run_onnxruntime
from tests.quantized_models import FLOAT, model_of, simplified
from tests.tuned_tiny import target

pytestmark = pytest.mark.skipif(
    not all(has_feature(target(), feature) for feature in FEATURES),
    reason="the processor has no instruction that widens float16",
)

RANDOM = np.random.default_rng(0)
DEPTH = 260


def product(rows, columns, are_halves):
    weights = RANDOM.standard_normal((DEPTH, columns)).astype(np.float32)
    if are_halves:
        weights = weights.astype(np.float16).astype(np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    given, made = {"x": (FLOAT, (rows, DEPTH))}, {"y": (FLOAT, (rows, columns))}
    return model_of([node], given, made, {"w": weights})


def data_types(lowered):
    return {
        str(parameter.dtype)
        for task in extract_tasks(lowered, target())
        for parameter in task.mod["main"].params
    }


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("columns", [257, 320])
def test_weights_stay_float16_and_nothing_is_rounded(rows, columns):
    model = product(rows, columns, are_halves=True)
    lowered = lower(simplified(model), target(), "NHWC")
    assert "float16" in data_types(lowered)
    data = RANDOM.standard_normal((rows, DEPTH)).astype(np.float32)
    (found,) = CompiledModel(build_executable(lowered, target()), target()).outputs([data])
    (exact,) = run_onnxruntime(model, {"x": data}, 1)
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("rows", "columns", "are_halves"),
    [(9, 320, True), (1, 64, True), (1, 320, False)],
)
def test_other_products_stay_float32(rows, columns, are_halves):
    lowered = lower(simplified(product(rows, columns, are_halves)), target(), "NHWC")
    assert data_types(lowered) == {"float32"}
