"""Multiply-adds of ONNX graphs."""

import numpy as np

from benchmarks.zoo.count import multiply_adds
from tests.made.onnx_text import model_of
from tests.tiny_models import random_weight


def test_multiply_adds_of_each_operator_equal_those_counted_by_hand():
    generator = np.random.default_rng(0)
    weights = {
        "grouped": random_weight(generator, 6, 2, 3, 3),
        "transposed": random_weight(generator, 6, 5, 2, 2),
        "left": random_weight(generator, 7, 3),
        "right": random_weight(generator, 4, 7),
        "matrix": random_weight(generator, 8, 9),
    }
    model = model_of(
        """(float[1,4,10,10] image, float[2,5,8] rows)
        => (float[1,5,20,20] b, float[3,4] c, float[2,5,9] e) {
            a = Conv <group = 2, pads = [1, 1, 1, 1]> (image, grouped)
            b = ConvTranspose <strides = [2, 2]> (a, transposed)
            c = Gemm <transA = 1, transB = 1> (left, right)
            d = MatMul (rows, matrix)
            e = Relu (d)
        }""",
        **weights,
    )
    products = 6 * 100 * 2 * 9, 6 * 100 * 5 * 4, 3 * 4 * 7, 2 * 5 * 9 * 8
    assert multiply_adds(model) == sum(products)
