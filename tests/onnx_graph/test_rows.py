"""Convolutions of rows as those of planes: results stay, and a chain has one view at each end."""

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from fewtune.onnx_graph.rows import planes_of_rows
from fewtune.verify.values import random_inputs, tensor_specs
from tests.made.onnx_text import model_of
from tests.made.outputs import relative_error, run_onnxruntime
from tests.tiny_models import random_weight

FLOATS = """
    padded = Pad(x, ends)
    a = Conv(padded, w1, b1)
    b = Mul(a, per_channel)
    c = Div(b, root)
    d = Erf(c)
    e = Mul(b, d)
    f = Conv<group = 16, pads = [2, 2], dilations = [1]>(e, w2)
    r = Add(f, e)
    pooled = MaxPool<kernel_shape = [2], strides = [2]>(r)
    g = Conv<auto_pad = "SAME_UPPER">(pooled, w3)
    h = ConvTranspose<strides = [2]>(g, w4)
    wide = Pad<mode = "reflect">(h, one_each)
    part = Slice(wide, first, last, axis)
    joined = Concat<axis = 1>(part, r)
    p = PRelu(joined, slopes)
    q = Conv(p, w5)
    left, right = Split<axis = 1>(q)
    s = Sub(left, right)
    t = Transpose<perm = [0, 2, 1]>(s)
    y = MatMul(t, w6)
    z = GlobalAveragePool(q)
"""
BYTES = """
    i = QuantizeLinear(x, s1, z1)
    a = DequantizeLinear(i, s1, z1)
    w = DequantizeLinear<axis = 0>(wq, ws, wz)
    b = Conv<pads = [1, 1]>(a, w)
    c = Relu(b)
    j = QuantizeLinear(c, s1, z1)
    y = DequantizeLinear(j, s1, z1)
"""


def network(text: str, outputs: list[str], weights: dict[str, np.ndarray]) -> ModelProto:
    given = ", ".join(f"float[] {name}" for name in outputs)
    model = model_of(f"(float[1,8,100] x) => ({given}) {{{text}}}", 13, **weights)
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def float_weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    shapes = [(16, 8, 3), (16, 1, 5), (12, 16, 3), (12, 16, 2), (4, 32, 1), (2, 3)]
    weights = {f"w{n}": random_weight(random, *shape) for n, shape in enumerate(shapes, 1)}
    weights["b1"] = random_weight(random, 16)
    weights["per_channel"] = random_weight(random, 1, 16, 1)
    weights["slopes"] = random_weight(random, 32, 1)
    weights["root"] = np.float32(2**0.5)
    weights["ends"] = np.array([0, 0, 2, 0, 0, 0])
    weights["one_each"] = np.array([0, 0, 1, 0, 0, 1])
    weights |= {"first": np.array([1]), "last": np.array([-1]), "axis": np.array([2])}
    return weights


def byte_weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        "wq": random.integers(-127, 128, (16, 8, 3)).astype(np.int8),
        "ws": random.uniform(0.01, 0.02, 16).astype(np.float32),
        "wz": np.zeros(16, np.int8),
        "s1": np.float32(0.05),
        "z1": np.uint8(128),
    }


@pytest.mark.parametrize(
    ("text", "outputs", "weights", "views"),
    [(FLOATS, ["y", "z", "q"], float_weights(), 4), (BYTES, ["y"], byte_weights(), 2)],
    ids=["floats", "bytes"],
)
def test_a_chain_computes_the_same_with_views_at_its_ends_only(text, outputs, weights, views):
    model = network(text, outputs, weights)
    lifted = planes_of_rows(model)
    onnx.checker.check_model(lifted)
    feeds = random_inputs(tensor_specs(model)[0], 0)
    expected, actual = (run_onnxruntime(each, feeds, 1) for each in (model, lifted))
    assert relative_error(actual, expected) < 1e-6
    kinds = [node.op_type for node in lifted.graph.node]
    assert kinds.count("Squeeze") + kinds.count("Unsqueeze") == views


def test_planes_that_the_model_makes_itself_are_taken():
    weights = {
        "w": random_weight(np.random.default_rng(0), 8, 8, 3),
        "plane": np.array([1, 8, 1, 100]),
        "row": np.array([1, 8, 100]),
    }
    text = """
        a = Conv<pads = [1, 1]>(x, w)
        b = Reshape(a, plane)
        c = Relu(b)
        d = Reshape(c, row)
        y = Conv<pads = [1, 1]>(d, w)
    """
    model = network(text, ["y"], weights)
    lifted = planes_of_rows(model)
    kinds = [node.op_type for node in lifted.graph.node]
    assert "Reshape" not in kinds
    feeds = random_inputs(tensor_specs(model)[0], 0)
    expected, actual = (run_onnxruntime(each, feeds, 1) for each in (model, lifted))
    assert relative_error(actual, expected) < 1e-6


def test_a_model_without_such_convolutions_is_left_as_it_is():
    model = network("y = Relu (x)", ["y"], {})
    assert planes_of_rows(model) is model
