"""Arithmetic of classical machine learning, compared with onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from fewtune.onnx_graph.operators.expand import EARLY, expand
from fewtune.verify.session import run_onnxruntime
from tests.expanded_models import assert_node

DOMAIN = "ai.onnx.ml"


@pytest.mark.parametrize(
    ("operator", "places", "attributes"),
    [
        ("Scaler", None, {"offset": [0.1, 0.2, 0.3, 0.4], "scale": [2.0, 1.0, 0.5, 3.0]}),
        (
            "LinearRegressor",
            None,
            {"coefficients": [0.1] * 8, "intercepts": [1.0, 2.0], "targets": 2},
        ),
        (
            "LinearRegressor",
            None,
            {"coefficients": [0.1, -0.2] * 4, "targets": 2, "post_transform": "LOGISTIC"},
        ),
        ("Normalizer", None, {"norm": "L1"}),
        ("Normalizer", None, {"norm": "L2"}),
        ("Normalizer", None, {"norm": "MAX"}),
        ("Binarizer", None, {"threshold": 0.3}),
        ("ArrayFeatureExtractor", [3, 0], {}),
    ],
)
def test_outputs_equal_those_of_onnxruntime(operator, places, attributes):
    names = ["x"] if places is None else ["x", "places"]
    constants = [] if places is None else [numpy_helper.from_array(np.array(places), "places")]
    graph = helper.make_graph(
        [helper.make_node(operator, names, ["y"], "node", domain=DOMAIN, **attributes)],
        "classical",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        constants,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    feeds = {"x": np.random.default_rng(0).uniform(0.1, 1, (3, 4)).astype(np.float32)}
    result = expand(model, EARLY)
    assert {node.domain for node in result.graph.node} == {""}
    given, wanted = run_onnxruntime(result, feeds, 1)[0], run_onnxruntime(model, feeds, 1)[0]
    np.testing.assert_allclose(given, wanted, rtol=1e-5)


def classical(operator, element_type, attributes, outputs=("y",), opset=3):
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], list(outputs), "node", domain=DOMAIN, **attributes)],
        "classical",
        [helper.make_tensor_value_info("x", element_type, [6, 4])],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
def test_a_linear_classifier_equals_that_of_onnxruntime(transform):
    draws = np.random.default_rng(1)
    attributes = {
        "coefficients": draws.normal(size=12).tolist(),
        "intercepts": [0.1, -0.2, 0.3],
        "classlabels_ints": [5, 3, 9],
        "post_transform": transform,
    }
    model = classical("LinearClassifier", TensorProto.FLOAT, attributes, ("label", "scores"))
    feeds = {"x": draws.normal(size=(6, 4)).astype(np.float32)}
    given, wanted = (run_onnxruntime(each, feeds, 1) for each in (expand(model, EARLY), model))
    for mine, theirs in zip(given, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)


@pytest.mark.parametrize(
    ("operator", "element_type", "attributes"),
    [
        (
            "Imputer",
            TensorProto.FLOAT,
            {"imputed_value_floats": [1.0, 2.0, 3.0, 4.0], "replaced_value_float": float("nan")},
        ),
        (
            "Imputer",
            TensorProto.FLOAT,
            {"imputed_value_floats": [7.0], "replaced_value_float": 2.0},
        ),
        (
            "LabelEncoder",
            TensorProto.INT64,
            {"keys_int64s": [2, 0, 3], "values_floats": [0.5, 0.25, 4.0], "default_float": -1.0},
        ),
        (
            "LabelEncoder",
            TensorProto.FLOAT,
            {"keys_floats": [1.0, 2.0], "values_int64s": [10, 20]},
        ),
    ],
)
def test_mapped_numbers_equal_those_of_onnxruntime(operator, element_type, attributes):
    model = classical(operator, element_type, attributes)
    data = np.random.default_rng(2).integers(0, 4, (6, 4))
    data = data.astype(helper.tensor_dtype_to_np_dtype(element_type))
    if operator == "Imputer":
        data[1] = np.nan
    given, wanted = (
        run_onnxruntime(each, {"x": data}, 1)[0] for each in (expand(model, EARLY), model)
    )
    assert given.dtype == wanted.dtype
    np.testing.assert_array_equal(given, wanted)


@pytest.mark.parametrize("opset", [2, 4])
@pytest.mark.parametrize("keys", [[np.nan, 1.0, 2.0], [2.0, np.nan, 1.0, np.nan]])
def test_nan_is_a_key_from_the_version_from_which_onnxruntime_finds_it(keys, opset):
    attributes = {"keys_floats": keys, "values_int64s": [10, 20, 30, 40][: len(keys)]}
    model = classical("LabelEncoder", TensorProto.FLOAT, attributes, opset=opset)
    data = np.random.default_rng(2).integers(0, 4, (6, 4)).astype(np.float32)
    data[1] = np.nan
    given, wanted = (
        run_onnxruntime(each, {"x": data}, 1)[0] for each in (expand(model, EARLY), model)
    )
    np.testing.assert_array_equal(given, wanted)


@pytest.mark.parametrize("element_type", [TensorProto.FLOAT, TensorProto.INT64])
def test_categories_and_joined_features_equal_those_of_onnxruntime(element_type):
    nodes = [
        helper.make_node("OneHotEncoder", ["x"], ["hot"], "hot", domain=DOMAIN, cats_int64s=[2, 0]),
        helper.make_node("Flatten", ["hot"], ["flat"]),
        helper.make_node("Cast", ["x"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node(
            "FeatureVectorizer",
            ["flat", "floats"],
            ["y"],
            "join",
            domain=DOMAIN,
            inputdimensions=[8, 4],
        ),
    ]
    graph = helper.make_graph(
        nodes,
        "categories",
        [helper.make_tensor_value_info("x", element_type, [6, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [6, 12])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    data = np.random.default_rng(3).integers(0, 4, (6, 4))
    feeds = {"x": data.astype(helper.tensor_dtype_to_np_dtype(element_type))}
    given, wanted = (run_onnxruntime(each, feeds, 1)[0] for each in (expand(model, EARLY), model))
    np.testing.assert_array_equal(given, wanted)


@pytest.mark.parametrize("norm", ["L1", "L2", "MAX"])
def test_a_row_without_a_norm_stays_as_it_is(norm):
    node = helper.make_node("Normalizer", ["x"], ["y"], "node", domain=DOMAIN, norm=norm)
    graph = helper.make_graph(
        [node],
        "rows",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    feeds = {"x": np.array([[1, 2, 0, 4], [0] * 4, [3, 0, 0, 0]], np.float32)}
    expected, actual = (
        run_onnxruntime(each, feeds, 1)[0] for each in (model, expand(model, EARLY))
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
def test_a_linear_classifier_with_the_second_class_alone(transform: str) -> None:
    rows = np.random.default_rng(0).standard_normal((5, 2)).astype(np.float32)
    given = {"coefficients": [0.5, -0.25], "intercepts": [0.3], "classlabels_ints": [7, 3]}
    assert_node(
        "LinearClassifier",
        [rows],
        ("label", "scores"),
        domain="ai.onnx.ml",
        post_transform=transform,
        **given,
    )
