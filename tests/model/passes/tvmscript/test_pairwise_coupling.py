"""Pairwise coupling of an imported SVMClassifier, compared with onnxruntime's."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from fewtune.binding.bind import bind_shapes
from fewtune.model.import_options import ImportOptions
from fewtune.model.lower_checked import lower_checked
from fewtune.runtime.target import resolve_target
from fewtune.verify.session import run_onnxruntime

ROWS, FEATURES = 6, 3


def classifier(classes):
    draws, pairs = np.random.default_rng(0), classes * (classes - 1) // 2

    def numbers(*shape):
        return draws.normal(size=shape).reshape(-1).tolist()

    node = helper.make_node(
        "SVMClassifier",
        ["x"],
        ["label", "shares"],
        "machine",
        domain="ai.onnx.ml",
        classlabels_ints=list(range(classes)),
        coefficients=numbers(classes - 1, 2 * classes),
        kernel_params=[0.25, 0.0, 3.0],
        kernel_type="RBF",
        prob_a=(-np.abs(numbers(pairs)) * 4).tolist(),
        prob_b=numbers(pairs),
        rho=numbers(pairs),
        support_vectors=numbers(2 * classes, FEATURES),
        vectors_per_class=[2] * classes,
    )
    graph = helper.make_graph(
        [node],
        "machine",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, FEATURES])],
        [
            helper.make_tensor_value_info("label", TensorProto.INT64, [ROWS]),
            helper.make_tensor_value_info("shares", TensorProto.FLOAT, [ROWS, classes]),
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 5])
def test_the_probabilities_are_onnxruntimes(classes):
    model = classifier(classes)
    draws = np.random.default_rng(1).normal(size=(ROWS, FEATURES)).astype(np.float32)
    labels, shares = run_onnxruntime(model, {"x": draws}, 1)
    made = []
    lower_checked(
        bind_shapes(model, {}, {}),
        resolve_target("auto", 1),
        ImportOptions(),
        lambda compiled: made.append(compiled.outputs([draws])),
    )
    np.testing.assert_array_equal(made[-1][0], labels)
    np.testing.assert_allclose(made[-1][1], shares, rtol=1e-4)
