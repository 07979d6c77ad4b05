"""Support vector machines, compared with onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from fewtune.onnx_graph.operators.expand import EARLY, expand
from fewtune.verify.session import run_onnxruntime
from tests.expanded_models import assert_node

DOMAIN, FEATURES, ROWS = "ai.onnx.ml", 4, 40
DRAWS = np.random.default_rng(4)
KERNELS = {
    "LINEAR": [0.0, 0.0, 0.0],
    "POLY": [0.3, 0.5, 3.0],
    "RBF": [0.25, 0.0, 3.0],
    "SIGMOID": [0.3, 0.1, 3.0],
}


def machine(operator, outputs, attributes):
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], outputs, "node", domain=DOMAIN, **attributes)],
        "machine",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, FEATURES])],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def numbers(*shape):
    return DRAWS.normal(size=shape).reshape(-1).tolist()


def classifier(vectors, kind="RBF", **given):
    """A classifier with these numbers of support vectors, one for each class."""
    classes, pairs = len(vectors), len(vectors) * (len(vectors) - 1) // 2
    attributes = {
        "classlabels_ints": [5, 3, 9, 2][:classes],
        "coefficients": numbers(classes - 1, sum(vectors)),
        "kernel_params": KERNELS[kind],
        "kernel_type": kind,
        "rho": numbers(pairs),
        "support_vectors": numbers(sum(vectors), FEATURES),
        "vectors_per_class": vectors,
    }
    return machine("SVMClassifier", ["label", "scores"], attributes | given)


def linear_classifier(classes, sign=None, **given):
    weights = np.array(numbers(classes, FEATURES))
    attributes = {
        "classlabels_ints": [5, 3, 9][:classes],
        "coefficients": (np.abs(weights) if sign else weights).tolist(),
        "kernel_params": [0.0, 0.0, 0.0],
        "rho": [0.1],
    }
    return machine("SVMClassifier", ["label", "scores"], attributes | given)


def regressor(kind, **given):
    attributes = {
        "coefficients": numbers(6),
        "kernel_params": KERNELS[kind],
        "kernel_type": kind,
        "n_supports": 6,
        "rho": [0.2],
        "support_vectors": numbers(6, FEATURES),
    }
    return machine("SVMRegressor", ["y"], attributes | given)


PAIRS = {"prob_a": [-1.5, -2.0, -0.7, -1.0, -1.1, -1.2], "prob_b": [0.1, -0.2, 0.3, 0, 0, 0]}


@pytest.mark.parametrize(
    "model",
    [
        *(classifier([3, 2, 4], kind) for kind in KERNELS),
        classifier([3, 2, 4], post_transform="SOFTMAX"),
        classifier([3, 2, 4, 1]),
        classifier([3, 2]),
        classifier([3, 2, 4, 1], **PAIRS),
        classifier([3, 2], prob_a=[-1.5], prob_b=[0.1]),
        linear_classifier(3),
        linear_classifier(3, post_transform="LOGISTIC"),
        linear_classifier(2),
        linear_classifier(2, sign=1),
        *(regressor(kind) for kind in KERNELS),
        regressor("RBF", one_class=1),
        regressor("RBF", n_supports=0, coefficients=numbers(FEATURES)),
    ],
)
def test_outputs_equal_those_of_onnxruntime(model):
    feeds = {"x": DRAWS.normal(size=(ROWS, FEATURES)).astype(np.float32)}
    given, wanted = (run_onnxruntime(each, feeds, 1) for each in (expand(model, EARLY), model))
    for mine, theirs in zip(given, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
@pytest.mark.parametrize("constants", [(), (1,)])
def test_distances_of_rows(constants: tuple[int, ...], metric: str) -> None:
    draws = np.random.default_rng(0)
    rows, others = (draws.standard_normal((count, 3)).astype(np.float32) for count in (4, 7))
    others[2] = rows[1]
    assert_node("CDist", [rows, others], constants=constants, metric=metric, tolerance=1e-3)
