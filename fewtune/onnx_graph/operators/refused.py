"""Operators that no tuned network contains, and the sentence that refuses a node."""

from __future__ import annotations

from onnx import ModelProto, NodeProto

from fewtune.errors import InputError
from fewtune.onnx_graph.graph import STANDARD, all_nodes, node_text

_SERVED = "run this model with onnxruntime, or end it before that node"
_CLASSICAL = "ai.onnx.ml"
_UNTUNED = {
    ("", name)
    for name in (
        *("Acosh", "Asinh", "Atanh", "Cosh", "Det", "ImageDecoder", "RegexFullMatch", "Scan"),
        *("SequenceMap", "Sinh", "StringConcat", "StringNormalizer", "StringSplit"),
        *("TensorScatter", "TfIdfVectorizer"),
    )
} | {
    ("com.microsoft", name)
    for name in ("GroupQueryAttention", "MatMulNBits", "NhwcMaxPool", "RotaryEmbedding")
}


def refusal(node: NodeProto, reason: str) -> str:
    """The sentence that refuses a node; a reason without advice is followed by what serves it."""
    advice = "" if ": " in reason else f": {_SERVED}"
    return f"{node_text(node)} {reason}{advice}"


def refuse_untuned(model: ModelProto) -> None:
    """Refuse a model with an operator that no tuned network contains.

    Raises
    ------
    InputError
        Naming the first such node.
    """
    for node in all_nodes(model.graph):
        if node.domain == _CLASSICAL:
            raise InputError(refusal(node, "is of classical machine learning, not of a network"))
        domain = "" if node.domain in STANDARD else node.domain
        if (domain, node.op_type) in _UNTUNED:
            raise InputError(refusal(node, "is an operator that nothing here tunes"))
