"""Kinds of outputs that a check might refuse although they are right: each passes."""

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.tiny_models import random_weight
from tests.verify.imported import imported
from tests.verify.small_models import conv

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
PLANE = [1, 8, 8, 8]
N = helper.make_node
SCALES = {"big": np.float32(1e6), "tiny": np.float32(1e-12)}
LOWEST = np.float32(np.finfo(np.float32).min)
TRIANGLE = np.triu(np.full((8, 8), -np.inf, np.float32), 1)
# By name: nodes behind a convolution with output ``c``, outputs, constants.
KINDS: dict[str, tuple[list[Any], dict[str, tuple[int, list[int]]], dict[str, Any]]] = {
    "mixed scales": (
        [
            N("Sigmoid", ["c"], ["s"]),
            N("Mul", ["c", "big"], ["b"]),
            N("Mul", ["s", "tiny"], ["t"]),
            N("Concat", ["b", "t", "s"], ["y"], axis=1),
        ],
        {"y": (FLOAT, [1, 24, 8, 8])},
        SCALES,
    ),
    "ties of a maximum": (
        [
            N("Relu", ["c"], ["r"]),
            N("Floor", ["r"], ["f"]),
            N("ArgMax", ["f"], ["y"], axis=1),
            N("ArgMax", ["f"], ["z"], axis=1, select_last_index=1),
        ],
        {"y": (INT64, [1, 1, 8, 8]), "z": (INT64, [1, 1, 8, 8])},
        {},
    ),
    "booleans": (
        [N("Greater", ["c", "low"], ["y"])],
        {"y": (BOOL, PLANE)},
        {"low": SCALES["tiny"]},
    ),
    "NaN of half the elements": ([N("Log", ["c"], ["y"])], {"y": (FLOAT, PLANE)}, {}),
    "NaN inside only": (
        [
            N("Sqrt", ["c"], ["q"]),
            N("IsNaN", ["q"], ["n"]),
            N("Where", ["n", "zero", "q"], ["y"]),
        ],
        {"y": (FLOAT, PLANE)},
        {"zero": np.float32(0)},
    ),
    "division by zero": (
        [N("Relu", ["c"], ["r"]), N("Div", ["one", "r"], ["y"])],
        {"y": (FLOAT, PLANE)},
        {"one": np.float32(1)},
    ),
    "no element": (
        [N("Slice", ["c", "two", "two", "one"], ["y"]), N("Relu", ["c"], ["z"])],
        {"y": (FLOAT, [1, 0, 8, 8]), "z": (FLOAT, PLANE)},
        {"two": np.array([2]), "one": np.array([1])},
    ),
    "a scalar": ([N("ReduceMean", ["c"], ["y"], keepdims=0)], {"y": (FLOAT, [])}, {}),
    "a constant": (
        [N("Identity", ["k"], ["y"])],
        {"c": (FLOAT, PLANE), "y": (FLOAT, [3])},
        {"k": np.arange(3, dtype=np.float32)},
    ),
    "one value twice": (
        [N("Relu", ["c"], ["y"]), N("Identity", ["y"], ["z"])],
        {"y": (FLOAT, PLANE), "z": (FLOAT, PLANE)},
        {},
    ),
    "the lowest float and a softmax of it": (
        [N("Where", ["mask", "c", "fill"], ["a"]), N("Softmax", ["a"], ["y"], axis=-1)],
        {"a": (FLOAT, PLANE), "y": (FLOAT, PLANE)},
        {"mask": np.random.default_rng(1).random((1, 1, 8, 8)) < 0.4, "fill": LOWEST},
    ),
    "minus infinity in a triangle": (
        [N("Add", ["c", "triangle"], ["a"]), N("Softmax", ["a"], ["y"], axis=-1)],
        {"a": (FLOAT, PLANE), "y": (FLOAT, PLANE)},
        {"triangle": TRIANGLE},
    ),
    "overflow": (
        [N("Mul", ["c", "k"], ["m"]), N("Exp", ["m"], ["y"])],
        {"y": (FLOAT, PLANE)},
        {"k": np.float32(60)},
    ),
    "digits that cancel": (
        [N("Add", ["c", "k"], ["m"]), N("Sub", ["m", "k"], ["y"])],
        {"y": (FLOAT, PLANE)},
        {"k": np.float32(1e4)},
    ),
    "pixels": (
        [
            N("Mul", ["c", "k"], ["m"]),
            N("Clip", ["m", "zero", "most"], ["l"]),
            N("Cast", ["l"], ["y"], to=TensorProto.UINT8),
        ],
        {"y": (TensorProto.UINT8, PLANE)},
        {"k": np.float32(64), "zero": np.float32(0), "most": np.float32(255)},
    ),
    "double precision at the end": (
        [N("Cast", ["c"], ["d"], to=TensorProto.DOUBLE), N("Exp", ["d"], ["y"])],
        {"y": (TensorProto.DOUBLE, PLANE)},
        {},
    ),
}


def model_of(kind: str) -> ModelProto:
    nodes, outputs, constants = KINDS[kind]
    weight = random_weight(np.random.default_rng(0), 8, 3, 3, 3)
    tensors = {"w": weight, **{n: np.asarray(value) for n, value in constants.items()}}
    graph = helper.make_graph(
        [conv("x", "c", "w", "conv"), *nodes],
        "kind",
        [helper.make_tensor_value_info("x", FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info(name, *spec) for name, spec in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_right_model_passes(kind):
    assert imported(model_of(kind)).reference.taps
