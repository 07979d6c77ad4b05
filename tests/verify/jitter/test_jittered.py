"""Values that move when rounding noise is measured: all inputs of sums."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from fewtune.onnx_graph.simplify import simplify
from fewtune.verify.noise import NoiseMeter
from fewtune.verify.session import run_onnxruntime

ROWS, WIDTH = 40, 64


def test_an_embedding_concatenated_with_an_input_moves() -> None:
    random = np.random.default_rng(0)
    # The embedding cancels in the product, and the other input is far smaller.
    table = random.standard_normal((20, WIDTH)).astype(np.float32)
    weight = random.standard_normal((WIDTH + 1, 8)).astype(np.float32)
    weight[:WIDTH] -= np.linalg.lstsq(table, table @ weight[:WIDTH], rcond=None)[0]
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["found"]),
        helper.make_node("Concat", ["found", "x"], ["both"], axis=1),
        helper.make_node("MatMul", ["both", "weight"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("ids", TensorProto.INT64, [ROWS]),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, 1]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [ROWS, 8])],
        [numpy_helper.from_array(table, "table"), numpy_helper.from_array(weight, "weight")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    feeds = {
        "ids": random.integers(0, 20, ROWS),
        "x": (1e-6 * random.standard_normal((ROWS, 1))).astype(np.float32),
    }
    simplified = simplify(model)
    (value,) = run_onnxruntime(simplified, feeds, 1)
    (expected,) = NoiseMeter(simplified, 1, {}).expected(feeds, [value], [], seed=0)
    terms = np.abs(table[feeds["ids"]]) @ np.abs(weight[:WIDTH])
    rounding = np.finfo(np.float32).eps * terms / np.sqrt(WIDTH)
    assert np.median(expected.noise / rounding) > 1
