"""Arithmetic of classical machine learning, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from fewtune.onnx_graph.operators.expand import EARLY, expand
from fewtune.verify.session import run_onnxruntime

DOMAIN = "ai.onnx.ml"


@pytest.mark.parametrize(
    ("operator", "places", "attributes"),
    [
        ("Scaler", None, {"offset": [0.1, 0.2, 0.3, 0.4], "scale": [2.0, 1.0, 0.5, 3.0]}),
        (
            "LinearRegressor",
            None,
            {"coefficients": [0.1] * 8, "intercepts": [1.0, 2.0], "targets": 2},
        ),
        ("Normalizer", None, {"norm": "L1"}),
        ("Normalizer", None, {"norm": "L2"}),
        ("Normalizer", None, {"norm": "MAX"}),
        ("Binarizer", None, {"threshold": 0.3}),
        ("ArrayFeatureExtractor", [3, 0], {}),
    ],
)
def test_it_is_what_onnxruntime_gives(operator, places, attributes):
    names = ["x"] if places is None else ["x", "places"]
    constants = [] if places is None else [numpy_helper.from_array(np.array(places), "places")]
    graph = helper.make_graph(
        [helper.make_node(operator, names, ["y"], "node", domain=DOMAIN, **attributes)],
        "classical",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        constants,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    feeds = {"x": np.random.default_rng(0).uniform(0.1, 1, (3, 4)).astype(np.float32)}
    result = expand(model, EARLY)
    assert {node.domain for node in result.graph.node} == {""}
    given, wanted = run_onnxruntime(result, feeds, 1)[0], run_onnxruntime(model, feeds, 1)[0]
    np.testing.assert_allclose(given, wanted, rtol=1e-5)
