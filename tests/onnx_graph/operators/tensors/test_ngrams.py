"""Counts of n-grams, compared with onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from fewtune.errors import InputError
from tests.expanded_models import assert_same, expanded

POOL = {"pool_int64s": [2, 3, 5, 4, 5, 6, 7, 8, 6, 7], "ngram_counts": [0, 4]}


def vectorizer(shape, element_type=TensorProto.INT64, **given):
    attributes = POOL | {
        "ngram_indexes": [0, 2, 1, 3, 6, 5, 4],
        "min_gram_length": 1,
        "max_gram_length": 2,
        "max_skip_count": 0,
        "mode": "TF",
    }
    node = helper.make_node("TfIdfVectorizer", ["x"], ["y"], "count", **(attributes | given))
    graph = helper.make_graph(
        [node],
        "counting",
        [helper.make_tensor_value_info("x", element_type, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("shape", [[30], [3, 30], [1, 1]])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"max_skip_count": 4, "min_gram_length": 2},
        {"mode": "IDF", "weights": [0.5, 1, 2, 3, 4, 5, 6]},
        {"mode": "TFIDF", "weights": [0.5, 1, 2, 3, 4, 5, 6], "max_skip_count": 1},
    ],
)
def test_counts_equal_those_of_onnxruntime(shape, given):
    data = np.random.default_rng(0).integers(2, 9, shape)
    assert_same(vectorizer(shape, **given), {"x": data})


def test_ngrams_that_share_a_column_are_refused():
    with pytest.raises(InputError, match="'count'.*several n-grams in one column"):
        expanded(vectorizer([6], ngram_indexes=[0, 1, 2, 3, 3, 4, 5]))
