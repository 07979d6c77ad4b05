"""Ensembles of decision trees as products, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from fewtune.errors import InputError
from fewtune.onnx_graph.operators.classical.forest import UnknownFormError, forest_of
from fewtune.onnx_graph.operators.expand import EARLY, expand
from fewtune.verify.session import run_onnxruntime

DOMAIN = "ai.onnx.ml"
FEATURES = 5
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


def grown(kind: str, targets: int, ids: list[int], modes: tuple[str, ...], low: float) -> dict:
    """Attributes of three random trees whose leaves add to the targets of these numbers."""
    draws = np.random.default_rng(3)
    nodes: list[tuple] = []
    leaves: list[tuple] = []

    def grow(tree: int, depth: int) -> int:
        number = sum(node[0] == tree for node in nodes)
        nodes.append(())
        place = len(nodes) - 1
        nodes[place] = (tree, number, "LEAF", 0, 0.0, 0, 0, 0)
        if depth == 0 or (depth < 3 and draws.random() < 0.3):
            leaves.extend((tree, number, each, draws.uniform(low, 1)) for each in ids)
            return number
        true, false = grow(tree, depth - 1), grow(tree, depth - 1)
        feature, mode = int(draws.integers(FEATURES)), modes[int(draws.integers(len(modes)))]
        split = float(draws.integers(-1, 2))
        nodes[place] = (tree, number, mode, feature, split, true, false, int(draws.integers(2)))
        return number

    for tree in range(3):
        grow(tree, 3)
    names = ("treeids", "nodeids", "modes", "featureids", "values", "truenodeids", "falsenodeids")
    names += ("missing_value_tracks_true",)
    given = {f"nodes_{name}": [node[i] for node in nodes] for i, name in enumerate(names)}
    parts = ("treeids", "nodeids", "ids", "weights")
    given |= {f"{kind}_{name}": [leaf[i] for leaf in leaves] for i, name in enumerate(parts)}
    return given | ({"n_targets": targets} if kind == "target" else {})


def modelled(
    operator: str, attributes: dict, outputs: int, element_type: int = TensorProto.FLOAT, opset=3
) -> ModelProto:
    names = ["y", "z"][:outputs]
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], names, "trees", domain=DOMAIN, **attributes)],
        "trees",
        [helper.make_tensor_value_info("x", element_type, [40, FEATURES])],
        [helper.make_empty_tensor_value_info(name) for name in names],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def assert_same(model: ModelProto, dtype: type = np.float32) -> None:
    # Whole numbers: what lies on a split tells the comparisons apart. Some are missing.
    data = np.random.default_rng(0).integers(-2, 3, (40, FEATURES)).astype(dtype)
    data[::7, 1] = np.nan
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
        (3, {"post_transform": "SOFTMAX"}),
        (3, {"post_transform": "LOGISTIC", "base_values": [0.1, 0.2, 0.3]}),
    ],
)
def test_a_regressor_is_what_onnxruntime_gives(modes, targets, more):
    trees = grown("target", targets, list(range(targets)), modes, -1)
    assert_same(modelled("TreeEnsembleRegressor", trees | more, 1))


@pytest.mark.parametrize(
    ("labels", "ids", "low", "more"),
    [
        ([4, 2, 7], [0, 1, 2], 0, {}),
        ([4, 2, 7], [0, 1, 2], -1, {"post_transform": "SOFTMAX"}),
        ([4, 2, 7], [0, 1, 2], -1, {"base_values": [0.3, -0.2, 0.1]}),
        ([4, 2], [0], 0, {}),
        ([4, 2], [0], -1, {"post_transform": "LOGISTIC"}),
        ([4, 2], [0], -1, {"post_transform": "LOGISTIC", "base_values": [0.3]}),
        ([4, 2], [0], -1, {}),
    ],
)
def test_a_classifier_is_what_onnxruntime_gives(labels, ids, low, more):
    trees = grown("class", len(labels), ids, MODES[:1], low)
    if low == 0 and len(ids) == 1:
        # Of shares of one, whose sum is compared with a half.
        trees["class_weights"] = [each / 3 for each in trees["class_weights"]]
    assert_same(
        modelled("TreeEnsembleClassifier", trees | {"classlabels_int64s": labels} | more, 2)
    )


def test_an_ensemble_of_the_newest_form_is_what_onnxruntime_gives():
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


def test_what_is_not_known_is_refused_by_node():
    trees = grown("class", 2, [0, 1], MODES[:1], 0) | {"classlabels_int64s": [0, 1]}
    with pytest.raises(InputError, match=r"TreeEnsembleClassifier \(node 'trees'\) scores two"):
        expand(modelled("TreeEnsembleClassifier", trees, 2), EARLY)
    trees = grown("target", 2, [0, 1], MODES[:1], 0) | {"post_transform": "PROBIT"}
    with pytest.raises(InputError, match="PROBIT"):
        expand(modelled("TreeEnsembleRegressor", trees, 1), EARLY)


def test_an_ensemble_with_too_many_ways_is_refused():
    trees = grown("target", 1, [0], MODES[:1], 0)
    node = modelled("TreeEnsembleRegressor", trees, 1).graph.node[0]
    with pytest.raises(UnknownFormError, match="leaves or more"):
        forest_of(node, 10)
