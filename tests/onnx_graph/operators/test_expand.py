"""Calls of a model's own functions are replaced by their bodies."""

import numpy as np
import pytest
from onnx import parser

from fewtune.onnx_graph.operators.expand import inlined
from tests.made.outputs import run_onnxruntime

# Functions of one node each, whose attribute has a default.
LEAKY = """<ir_version: 9, opset_import: ["": 17, "own": 1]>
leaky (float[2,8] a) => (float[2,8] c) {
    b = own.CALLED (a)
    c = own.CALLED <alpha = 0.7> (b)
}
<domain: "own", opset_import: ["": 17]>
Inner <alpha: float = 0.3> (x) => (y) { y = LeakyRelu <alpha: float = @alpha> (x) }
<domain: "own", opset_import: ["": 17, "own": 1]>
Outer <alpha: float = 0.2> (x) => (y) { y = own.Inner <alpha: float = @alpha> (x) }
"""


@pytest.mark.parametrize("called", ["Inner", "Outer"])
def test_a_call_takes_the_defaults_of_its_function(called):
    text = LEAKY.replace("CALLED", called)
    model = parser.parse_model(text)
    feeds = {"a": np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)}
    (wanted,) = run_onnxruntime(model, feeds, 1)
    result = inlined(model)
    assert {node.op_type for node in result.graph.node} == {"LeakyRelu"}
    (actual,) = run_onnxruntime(result, feeds, 1)
    np.testing.assert_allclose(actual, wanted, rtol=1e-6)
    assert model == parser.parse_model(text)
