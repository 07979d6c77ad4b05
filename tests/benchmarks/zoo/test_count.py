"""Multiply-adds of ONNX graphs."""

import numpy as np
import pytest
from onnx import helper

from benchmarks.zoo.count import multiply_adds
from fewtune.errors import InputError
from tests.tiny_models import make_model, random_weight


def test_multiply_adds_of_each_operator_equal_those_counted_by_hand():
    generator = np.random.default_rng(0)
    weights = {
        "grouped": random_weight(generator, 6, 2, 3, 3),
        "transposed": random_weight(generator, 6, 5, 2, 2),
        "left": random_weight(generator, 7, 3),
        "right": random_weight(generator, 4, 7),
        "matrix": random_weight(generator, 8, 9),
    }
    nodes = [
        helper.make_node("Conv", ["image", "grouped"], ["a"], group=2, pads=[1] * 4),
        helper.make_node("ConvTranspose", ["a", "transposed"], ["b"], strides=[2, 2]),
        helper.make_node("Gemm", ["left", "right"], ["c"], transA=1, transB=1),
        helper.make_node("MatMul", ["rows", "matrix"], ["d"]),
        helper.make_node("Relu", ["d"], ["e"]),
    ]
    inputs = {"image": [1, 4, 10, 10], "rows": [2, 5, 8]}
    outputs = {"b": [1, 5, 20, 20], "c": [3, 4], "e": [2, 5, 9]}
    model = make_model(nodes, inputs, outputs, weights)
    products = 6 * 100 * 2 * 9, 6 * 100 * 5 * 4, 3 * 4 * 7, 2 * 5 * 9 * 8
    assert multiply_adds(model) == sum(products)


def test_unknown_shape_cannot_be_counted():
    node = helper.make_node("MatMul", ["rows", "matrix"], ["product"], name="last")
    weights = {"matrix": np.ones((8, 9), np.float32)}
    model = make_model([node], {"rows": ["batch", 8]}, {"product": ["batch", 9]}, weights)
    with pytest.raises(InputError, match="MatMul 'last' .* the shape of 'rows' is not known"):
        multiply_adds(model)
