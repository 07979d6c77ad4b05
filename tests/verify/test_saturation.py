"""onnxruntime's products of bytes saturate on processors without VNNI; a reference's do not."""

import numpy as np
import pytest
from onnx import helper, numpy_helper

from fewtune.onnx_graph.session import OnnxruntimeSession

ROWS, DEPTH, COLUMNS = 4, 64, 16
MICROSOFT = "com.microsoft"
QLINEAR = "data one zero weights one weight_zero step middle"
OPERATORS = [
    ("MatMulInteger", "", "data weights zero weight_zero", "int32"),
    ("MatMulInteger", "", "data weights", "int32"),
    ("QLinearMatMul", "", QLINEAR, "uint8"),
    ("QLinearConv", "", QLINEAR, "uint8"),
    ("QGemm", MICROSOFT, "data one zero weights one weight_zero", "float32"),
    ("MatMulIntegerToFloat", MICROSOFT, "data weights one one zero weight_zero", "float32"),
    ("DynamicQuantizeMatMul", MICROSOFT, "data weights one weight_zero", "float32"),
]
CONSTANTS = {
    "one": np.float32(1),
    "zero": np.uint8(0),
    "weight_zero": np.int8(0),
    "step": np.float32(4096),
    "middle": np.uint8(128),
}


def run(nodes, data, weights, result, optimised):
    """What a reference's session computes of data with constant weights."""
    types = [helper.np_dtype_to_tensor_dtype(np.dtype(each)) for each in (data.dtype, result)]
    constants, read = CONSTANTS | {"weights": weights}, {name for n in nodes for name in n.input}
    graph = helper.make_graph(
        nodes,
        "bytes",
        [helper.make_tensor_value_info("data", types[0], data.shape)],
        [helper.make_tensor_value_info("result", types[1], None)],
        [numpy_helper.from_array(np.array(constants[n]), n) for n in read & {*constants}],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return OnnxruntimeSession(model, 1, optimised).run({"data": data})[0]


@pytest.mark.parametrize(("kind", "domain", "names", "result"), OPERATORS)
@pytest.mark.parametrize("optimised", [False, True])
def test_products_of_the_largest_bytes_are_exact(kind, domain, names, result, optimised):
    random = np.random.default_rng(0)
    data = random.choice(np.array([0, 254, 255], np.uint8), (ROWS, DEPTH))
    weights = random.choice(np.array([-128, 126, 127], np.int8), (DEPTH, COLUMNS))
    expected = data.astype(np.int64) @ weights
    if result == "uint8":
        expected = np.clip(np.rint(expected / 4096) + 128, 0, 255)
    given, held = data, weights
    if kind == "QLinearConv":
        given, held = data[..., None, None], weights.T[..., None, None].copy()
    if kind == "DynamicQuantizeMatMul":
        given = data.astype(np.float32)
    node = helper.make_node(kind, names.split(), ["result"], domain=domain)
    found = run([node], given, held, result, optimised)
    assert np.array_equal(found.reshape(expected.shape), expected)


def test_a_product_that_the_optimiser_makes_of_dequantized_bytes_is_exact():
    random = np.random.default_rng(0)
    data = random.choice(np.array([0, 254, 255], np.float32), (ROWS, DEPTH))
    weights = random.choice(np.array([-128, 126, 127], np.int8), (DEPTH, COLUMNS))
    nodes = [
        helper.make_node("QuantizeLinear", ["data", "one", "zero"], ["bytes"]),
        helper.make_node("DequantizeLinear", ["bytes", "one", "zero"], ["left"]),
        helper.make_node("DequantizeLinear", ["weights", "one", "weight_zero"], ["right"]),
        helper.make_node("MatMul", ["left", "right"], ["result"]),
    ]
    found = run(nodes, data, weights, "float32", optimised=True)
    assert np.array_equal(found, data @ weights)
