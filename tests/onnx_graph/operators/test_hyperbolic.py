"""Hyperbolic functions and their inverses are accurate near zero and near overflow."""

from __future__ import annotations

import numpy as np
import pytest

from fewtune.verify.session import run_onnxruntime
from tests.expanded_models import expanded, helper, node_model

MAGNITUDES = {
    "Sinh": [0, 1e-38, 1e-20, 1e-5, 0.3, 0.999, 1, 1.001, 5, 20, 88.5, 89.3, 100, np.inf],
    "Cosh": [0, 1e-38, 1e-20, 1e-5, 0.3, 0.999, 1, 1.001, 5, 20, 88.5, 89.3, 100, np.inf],
    "Acosh": [1, 1 + 1e-6, 1.0001, 1.03, 1.5, 3, 99, 1e4, 1e5, 1e20, 3e38, np.inf, 0.9],
    "Asinh": [0, 1e-38, 1e-20, 1e-5, 0.1, 0.249, 0.25, 0.251, 3, 3000, 1e5, 1e20, 3e38, np.inf],
    "Atanh": [0, 1e-38, 1e-20, 1e-5, 0.1, 0.249, 0.25, 0.251, 0.5, 0.9, 0.999, 1, 2],
}
EXACT = {
    "Sinh": np.sinh,
    "Cosh": np.cosh,
    "Acosh": np.arccosh,
    "Asinh": np.arcsinh,
    "Atanh": np.arctanh,
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("operator", MAGNITUDES)
def test_small_and_large_numbers(operator: str, dtype: type) -> None:
    magnitudes = np.array(MAGNITUDES[operator])
    data = np.concatenate([magnitudes, -magnitudes, [np.nan]]).astype(dtype)
    node = helper.make_node(operator, ["data"], ["out"])
    model, feeds = node_model(node, {"data": data}, opset=22)
    model.ir_version = 10
    (actual,) = run_onnxruntime(expanded(model), feeds, 1)
    with np.errstate(all="ignore"):
        wanted = EXACT[operator](data.astype(np.float64)).astype(dtype)
    np.testing.assert_allclose(actual, wanted, rtol=8 * np.finfo(dtype).eps)
