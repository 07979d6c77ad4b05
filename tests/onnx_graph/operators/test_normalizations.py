"""Normalisations that onnxruntime's optimiser writes, compared with onnxruntime."""

import numpy as np
import pytest

from tests.expanded_models import assert_node

RANDOM = np.random.default_rng(0)
ROWS = RANDOM.standard_normal((2, 3, 4)).astype(np.float32)


@pytest.mark.parametrize("opset", [11, 14])
@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_a_layer_normalization_in_an_older_operator_set(opset, kind):
    data, scale = ROWS.astype(kind), np.array([1, 2, 0.5, -1], kind)
    for more in ([scale], [scale, scale]):
        given = {"domain": "", "opset": opset, "tolerance": 1e-3 if kind == np.float16 else 2e-5}
        assert_node("LayerNormalization", [data, *more], constants=(1,), **given)


@pytest.mark.parametrize("p", [1, 2])
def test_rows_whose_squares_underflow_have_norm_zero(p):
    data = np.concatenate([ROWS[0], np.zeros((1, 4), np.float32), 1e-30 * ROWS[1]]).astype("f4")
    assert_node("LpNormalization", [data], domain="", opset=22, axis=1, p=p)
