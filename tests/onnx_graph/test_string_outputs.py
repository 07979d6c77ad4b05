"""Strings and maps at the end of classifiers become numbers."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from fewtune.onnx_graph.string_outputs import replace_string_outputs, string_output_notes
from fewtune.verify.session import run_onnxruntime

DOMAIN = "ai.onnx.ml"
TEXTS = ["cat", "dog", "owl"]
FEEDS = {"x": np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)}


def classifier(*nodes, outputs, tables=()):
    graph = helper.make_graph(
        list(nodes),
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 4])],
        outputs,
        list(tables),
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 2)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def linear(label):
    coefficients = np.random.default_rng(1).normal(size=12).tolist()
    return helper.make_node(
        "LinearClassifier",
        ["x"],
        [label, "scores"],
        "linear",
        domain=DOMAIN,
        coefficients=coefficients,
        intercepts=[0.1, 0.2, 0.3],
        classlabels_strings=TEXTS,
    )


def test_labels_and_maps_become_numbers():
    named = helper.make_node("Identity", ["label"], ["name"])
    mapped = helper.make_node(
        "ZipMap", ["scores"], ["shares"], "zip", domain=DOMAIN, classlabels_strings=TEXTS
    )
    texts = helper.make_tensor_value_info("name", TensorProto.STRING, [8])
    map_type = helper.make_map_type_proto(
        TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    )
    maps = helper.make_value_info("shares", helper.make_sequence_type_proto(map_type))
    model = classifier(linear("label"), named, mapped, outputs=[texts, maps])
    names, shares = run_onnxruntime(model, FEEDS, 1)
    replace_string_outputs(model)
    places, rows = run_onnxruntime(model, FEEDS, 1)
    assert [TEXTS[place] for place in places] == list(names)
    np.testing.assert_array_equal(rows, [[each[text] for text in TEXTS] for each in shares])
    notes = string_output_notes(model)
    assert "the indices, from 0, among 'cat', 'dog', 'owl'" in notes[0]
    assert "output 'shares' is a tensor" in notes[1]


def test_a_table_of_strings_becomes_indices():
    best = helper.make_node("ArgMax", ["x"], ["best"], axis=1, keepdims=0)
    chosen = helper.make_node("ArrayFeatureExtractor", ["texts", "best"], ["row"], domain=DOMAIN)
    flat = helper.make_node("Reshape", ["row", "all"], ["name"])
    tables = [
        numpy_helper.from_array(np.array(TEXTS + ["pig"], object), "texts"),
        numpy_helper.from_array(np.array([-1]), "all"),
    ]
    texts = helper.make_tensor_value_info("name", TensorProto.STRING, None)
    model = classifier(best, chosen, flat, outputs=[texts], tables=tables)
    (names,) = run_onnxruntime(model, FEEDS, 1)
    replace_string_outputs(model)
    (places,) = run_onnxruntime(model, FEEDS, 1)
    assert [[*TEXTS, "pig"][place] for place in places] == list(names)


def test_strings_that_other_nodes_read_stay():
    upper = helper.make_node("StringConcat", ["label", "label"], ["name"])
    texts = helper.make_tensor_value_info("name", TensorProto.STRING, [8])
    model = classifier(linear("label"), upper, outputs=[texts])
    replace_string_outputs(model)
    assert string_output_notes(model) == []
    assert model.graph.output[0].type.tensor_type.elem_type == TensorProto.STRING
