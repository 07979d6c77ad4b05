"""Forests that are walked, imported, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from fewtune.binding.bind import bind_shapes
from fewtune.model.import_options import ImportOptions
from fewtune.model.lower_checked import lower_checked
from fewtune.runtime.target import resolve_target
from fewtune.verify.session import run_onnxruntime
from tests.made.trees import MODES, grown, modelled, rows


@pytest.mark.parametrize(
    ("element_type", "dtype", "more"),
    [
        (TensorProto.FLOAT, np.float32, {}),
        (TensorProto.FLOAT, np.float32, {"aggregate_function": "MIN"}),
        (TensorProto.DOUBLE, np.float64, {"base_values": [0.5]}),
    ],
)
def test_what_leaves_add_up_to_is_onnxruntimes(element_type, dtype, more):
    trees = grown("target", 1, [0], MODES, -1, trees=60, deepest=10)
    model = modelled("TreeEnsembleRegressor", trees | more, 1, element_type)
    feeds = {"x": rows(dtype)}
    wanted = run_onnxruntime(model, feeds, 1)[0]
    made = []
    lower_checked(
        bind_shapes(model, {}, {}),
        resolve_target("auto", 1),
        ImportOptions(),
        lambda compiled: made.append(compiled.outputs(list(feeds.values()))[0]),
    )
    assert len(np.unique(wanted)) > 4
    np.testing.assert_allclose(made[-1], wanted, rtol=1e-5, atol=1e-6)
