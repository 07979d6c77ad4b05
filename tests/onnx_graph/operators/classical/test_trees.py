"""Ensembles of decision trees as products, compared with onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, numpy_helper

from fewtune.errors import InputError
from fewtune.onnx_graph.operators.expand import EARLY, expand
from fewtune.verify.session import run_onnxruntime
from tests.made.trees import MODES, grown, modelled, rows, sparse


def assert_same(model: ModelProto, dtype: type = np.float32) -> None:
    data = rows(dtype)
    result = expand(model, EARLY)
    assert {node.domain for node in result.graph.node} == {""}
    given, wanted = (run_onnxruntime(each, {"x": data}, 1) for each in (result, model))
    assert [each.dtype for each in given] == [each.dtype for each in wanted]
    for mine, theirs in zip(given, wanted, strict=True):
        assert len(np.unique(theirs)) > 1
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("modes", [MODES[:1], MODES])
@pytest.mark.parametrize(
    ("targets", "more"),
    [
        (1, {}),
        (1, {"base_values": [0.5]}),
        (1, {"aggregate_function": "AVERAGE"}),
        (1, {"aggregate_function": "MIN"}),
        (1, {"aggregate_function": "MAX", "base_values": [0.5]}),
        (3, {"aggregate_function": "MIN", "post_transform": "SOFTMAX"}),
        (3, {"aggregate_function": "MAX", "base_values": [0.1, 0.2, 0.3]}),
        (3, {"post_transform": "SOFTMAX"}),
        (3, {"post_transform": "SOFTMAX_ZERO"}),
        (3, {"post_transform": "LOGISTIC", "base_values": [0.1, 0.2, 0.3]}),
    ],
)
def test_a_regressor_equals_that_of_onnxruntime(modes, targets, more):
    trees = grown("target", targets, list(range(targets)), modes, -1)
    assert_same(modelled("TreeEnsembleRegressor", trees | more, 1))


@pytest.mark.parametrize("aggregate", ["MIN", "MAX", "SUM", "AVERAGE"])
@pytest.mark.parametrize("targets", [1, 3])
def test_leaves_without_a_weight_do_not_count(targets, aggregate):
    assert_same(sparse(targets, aggregate))


@pytest.mark.parametrize(
    ("labels", "ids", "low", "more"),
    [
        ([4, 2, 7], [0, 1, 2], 0, {}),
        ([4, 2, 7], [0, 1, 2], -1, {"post_transform": "SOFTMAX"}),
        ([4, 2, 7], [0, 1, 2], -1, {"post_transform": "SOFTMAX_ZERO"}),
        ([4, 2, 7], [0, 1, 2], -1, {"base_values": [0.3, -0.2, 0.1]}),
        ([4, 2], [0], 0, {}),
        ([4, 2], [0], -1, {"post_transform": "LOGISTIC"}),
        ([4, 2], [0], -1, {"post_transform": "LOGISTIC", "base_values": [0.3]}),
        ([4, 2], [0], -1, {}),
        ([4, 2], [0, 1], -1, {}),
        ([4, 2], [0, 1], -1, {"post_transform": "LOGISTIC"}),
        ([4, 2], [0, 1], -1, {"base_values": [0.3]}),
        ([4, 2], [1], -1, {}),
        ([4, 2], [1], -1, {"post_transform": "LOGISTIC", "base_values": [0.3]}),
    ],
)
def test_a_classifier_equals_that_of_onnxruntime(labels, ids, low, more):
    trees = grown("class", len(labels), ids, MODES[:1], low)
    if low == 0 and len(ids) == 1:
        # Leaves are shares of one, whose sum is compared with 0.5.
        trees["class_weights"] = [each / 3 for each in trees["class_weights"]]
    assert_same(
        modelled("TreeEnsembleClassifier", trees | {"classlabels_int64s": labels} | more, 2)
    )


def test_an_ensemble_of_the_newest_form_equals_that_of_onnxruntime():
    def tensor(values: list[float], dtype: type) -> TensorProto:
        return numpy_helper.from_array(np.array(values, dtype))

    attributes = {
        "n_targets": 2,
        "aggregate_function": 1,
        "post_transform": 0,
        "tree_roots": [0, 2],
        "nodes_featureids": [0, 1, 2],
        "nodes_splits": tensor([0.5, -0.5, 1.0], np.float64),
        "nodes_modes": tensor([0, 3, 0], np.uint8),
        "nodes_truenodeids": [1, 0, 3],
        "nodes_trueleafs": [0, 1, 1],
        "nodes_falsenodeids": [1, 2, 4],
        "nodes_falseleafs": [1, 1, 1],
        "nodes_missing_value_tracks_true": [1, 0, 1],
        "leaf_targetids": [0, 1, 0, 1, 0],
        "leaf_weights": tensor([0.1, 0.7, -0.3, 0.9, 0.2], np.float64),
    }
    assert_same(modelled("TreeEnsemble", attributes, 1, TensorProto.DOUBLE, 5), np.float64)


def test_unknown_conditions_are_refused_by_node():
    trees = grown("class", 2, [0, 1], MODES[:1], 0) | {"classlabels_int64s": [0, 1]}
    trees["base_values"] = [0.1, 0.2]
    with pytest.raises(InputError, match=r"TreeEnsembleClassifier \(node 'trees'\) scores two"):
        expand(modelled("TreeEnsembleClassifier", trees, 2), EARLY)
    trees = grown("target", 2, [0, 1], MODES[:1], 0) | {"post_transform": "PROBIT"}
    with pytest.raises(InputError, match="PROBIT"):
        expand(modelled("TreeEnsembleRegressor", trees, 1), EARLY)


def test_conditions_of_sets_equal_those_of_onnxruntime():
    def tensor(values: list[float], dtype: type = np.float32) -> TensorProto:
        return numpy_helper.from_array(np.array(values, dtype))

    attributes = {
        "n_targets": 1,
        "tree_roots": [0],
        "nodes_featureids": [0, 1, 2],
        "nodes_splits": tensor([0.0, 0.5, 0.0]),
        "nodes_modes": tensor([6, 0, 6], np.uint8),
        "membership_values": tensor([1.0, -2.0, np.nan, 2.0, np.nan]),
        "nodes_truenodeids": [1, 0, 2],
        "nodes_trueleafs": [0, 1, 1],
        "nodes_falsenodeids": [2, 1, 3],
        "nodes_falseleafs": [0, 1, 1],
        "leaf_targetids": [0, 0, 0, 0],
        "leaf_weights": tensor([0.1, 0.7, -0.3, 0.9]),
    }
    assert_same(modelled("TreeEnsemble", attributes, 1, opset=5))


@pytest.mark.slow
def test_a_large_forest_stays_one_plain_ensemble():
    trees = grown("class", 3, [0, 1, 2], MODES, 0, trees=60, deepest=10)
    given = {"classlabels_int64s": [4, 2, 7], "post_transform": "SOFTMAX"}
    model = modelled("TreeEnsembleClassifier", trees | given, 2)
    result = expand(model, EARLY)
    (left,) = (node for node in result.graph.node if node.domain)
    assert left.op_type == "TreeEnsembleRegressor"
    assert expand(result, EARLY).graph.node == result.graph.node
    feeds = {"x": rows()}
    given, wanted = (run_onnxruntime(each, feeds, 1) for each in (result, model))
    np.testing.assert_array_equal(given[0], wanted[0])
    np.testing.assert_allclose(given[1], wanted[1], rtol=1e-5)


def test_a_tree_with_a_cycle_is_refused():
    trees = grown("target", 1, [0], MODES[:1], 0)
    trees["nodes_truenodeids"] = [
        0 if mode != "LEAF" else at
        for at, mode in zip(trees["nodes_truenodeids"], trees["nodes_modes"], strict=True)
    ]
    with pytest.raises(InputError, match="cycle|no root"):
        expand(modelled("TreeEnsembleRegressor", trees, 1), EARLY)
