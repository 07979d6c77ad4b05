"""Strings and maps that a classifier returns are replaced by numbers, with a note for the user."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from fewtune.onnx_graph.graph import attributes_of, node_text

_DOMAIN = "ai.onnx.ml"
# How the doc string of a changed node begins.
_MAPPED, _NUMBERED = "written as its columns: ", "written as numbers: "
# By operator, its attribute of integer labels.
_LABELS = {
    "LinearClassifier": "classlabels_ints",
    "SVMClassifier": "classlabels_ints",
    "TreeEnsembleClassifier": "classlabels_int64s",
}
_CHOOSING = frozenset({"ArrayFeatureExtractor", "Gather"})
_CARRYING = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_MOST_NAMED = 8


def replace_string_outputs(model: ModelProto) -> None:
    """Replace the strings and maps at the end of classifiers by numbers, in place.

    A ZipMap, which turns each row of probabilities into a map, returns the rows instead. A string
    label becomes its index among the labels, if it is only returned by the model.
    """
    graph = model.graph
    for node in graph.node:
        if node.domain == _DOMAIN and node.op_type == "ZipMap":
            _columns(graph, node)
        elif node.domain == _DOMAIN and node.op_type in _LABELS:
            _numbered_classes(graph, node)
        elif node.domain == _DOMAIN and node.op_type == "LabelEncoder":
            _numbered_values(graph, node)
        elif node.op_type in _CHOOSING:
            _numbered_table(graph, node)


def string_output_notes(model: ModelProto) -> list[str]:
    """A note for the user on each node that `replace_string_outputs` changed."""
    notes = []
    for node in model.graph.node:
        if node.doc_string.startswith(_MAPPED):
            labels = node.doc_string.removeprefix(_MAPPED)
            notes.append(
                f"output {node.output[0]!r} is a tensor, not a sequence of maps: a row of "
                f"probabilities for each row of the input, in the order of the labels {labels}"
            )
        elif node.doc_string.startswith(_NUMBERED):
            labels = node.doc_string.removeprefix(_NUMBERED)
            notes.append(
                f"{node_text(node)}: its labels are numbers, not texts: the indices, from 0, among "
                f"{labels}"
            )
    return notes


def _columns(graph: GraphProto, node: NodeProto) -> None:
    output = next((value for value in graph.output if value.name == node.output[0]), None)
    if output is None or _readers(graph, node.output[0]):
        return
    given = attributes_of(node)
    labels = given.get("classlabels_int64s") or given.get("classlabels_strings") or []
    plain = helper.make_node("Identity", list(node.input), list(node.output), name=node.name)
    plain.doc_string = _MAPPED + _listed(labels)
    node.CopyFrom(plain)
    output.type.CopyFrom(helper.make_tensor_type_proto(TensorProto.FLOAT, None))


def _numbered_classes(graph: GraphProto, node: NodeProto) -> None:
    texts = attributes_of(node).get("classlabels_strings")
    if not texts or not node.output[0] or not _ends_as_numbers(graph, node.output[0]):
        return
    _replace(node, {"classlabels_strings": None, _LABELS[node.op_type]: list(range(len(texts)))})
    node.doc_string = _NUMBERED + _listed(texts)


def _numbered_values(graph: GraphProto, node: NodeProto) -> None:
    texts = attributes_of(node).get("values_strings")
    if not texts or not _ends_as_numbers(graph, node.output[0]):
        return
    places = list(range(len(texts)))
    _replace(
        node,
        {"values_strings": None, "default_string": None}
        | {"values_int64s": places, "default_int64": -1},
    )
    node.doc_string = _NUMBERED + _listed(texts)


def _numbered_table(graph: GraphProto, node: NodeProto) -> None:
    """Replace a constant table of strings, if one node alone gathers from it."""
    table = next((each for each in graph.initializer if each.name == node.input[0]), None)
    if table is None or table.data_type != TensorProto.STRING:
        return
    if len(_readers(graph, table.name)) > 1 or not _ends_as_numbers(graph, node.output[0]):
        return
    texts = list(table.string_data)
    places = np.arange(len(texts), dtype=np.int64).reshape(tuple(table.dims))
    table.CopyFrom(numpy_helper.from_array(places, table.name))
    node.doc_string = _NUMBERED + _listed(texts)


def _ends_as_numbers(graph: GraphProto, name: str) -> bool:
    """Whether a value is only returned by the model; if so, the outputs become int64."""
    names, casts = [name], []
    for each in names:
        for reader in _readers(graph, each):
            if reader.op_type not in _CARRYING or reader.input[0] != each:
                return False
            if reader.op_type == "Cast":
                if attributes_of(reader).get("to") != TensorProto.STRING:
                    return False
                casts.append(reader)
            names.append(reader.output[0])
    for reader in casts:
        _replace(reader, {"to": TensorProto.INT64})
    for value in graph.output:
        if value.name in names:
            value.type.tensor_type.elem_type = TensorProto.INT64
    return True


def _readers(graph: GraphProto, name: str) -> list[NodeProto]:
    return [node for node in graph.node if name in node.input]


def _replace(node: NodeProto, values: dict[str, object]) -> None:
    """Set attributes; None removes one."""
    kept = [each for each in node.attribute if each.name not in values]
    made = [helper.make_attribute(k, v) for k, v in values.items() if v is not None]
    del node.attribute[:]
    node.attribute.extend([*kept, *made])


def _listed(labels: Sequence[object]) -> str:
    texts = [each.decode(errors="replace") if isinstance(each, bytes) else each for each in labels]
    named = ", ".join(repr(each) for each in texts[:_MOST_NAMED])
    return named if len(texts) <= _MOST_NAMED else f"{named} and {len(texts) - _MOST_NAMED} more"
