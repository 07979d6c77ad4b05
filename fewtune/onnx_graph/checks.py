"""Parsing a given ONNX file and checking everything but its shapes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto

from fewtune.errors import InputError
from fewtune.onnx_graph.external_data import array_of, external_files
from fewtune.onnx_graph.graph import (
    all_nodes,
    detach_weights,
    element_count,
    graph_inputs,
    is_float,
    is_native,
    operator_name,
    sort_nodes,
    type_name,
)
from fewtune.onnx_graph.operators.builder import refusal

SUPPORTED_TYPES = [kind for kind in TensorProto.DataType.values() if kind and is_native(kind)]
_NOT_NUMBERS = (TensorProto.STRING, TensorProto.COMPLEX64, TensorProto.COMPLEX128)
_PROTOBUF_LIMIT = 2**31
_INITIALIZERS_APART = 4
_MOST_NODES = 50_000
# Complaints of the checker about models that onnxruntime runs.
_ACCEPTED = (
    "is deprecated in domain_version",
    "with the version imported by model",
    "No opset import for domain 'ai.onnx'",
    # onnxruntime's optimizer writes these into models of older operator sets.
    "No Op registered for LayerNormalization",
    "No Op registered for SimplifiedLayerNormalization",
)

# Operators that no tuned network contains.
_CLASSICAL = "ai.onnx.ml"
_UNTUNED = frozenset(
    {"Acosh", "Asinh", "Atanh", "Col2Im", "Cosh", "DFT", "DeformConv", "Det", "ImageDecoder"}
    | {"LpNormalization", "LpPool", "RegexFullMatch", "ReverseSequence", "RoiAlign", "Scan"}
    | {"SequenceMap", "Sinh", "StringConcat", "StringNormalizer", "StringSplit"}
    | {"TensorScatter", "TfIdfVectorizer", "com.microsoft.DynamicQuantizeMatMul"}
    | {"com.microsoft.EmbedLayerNormalization", "com.microsoft.GroupQueryAttention"}
    | {"com.microsoft.MatMulIntegerToFloat", "com.microsoft.MatMulNBits"}
    | {"com.microsoft.NhwcMaxPool", "com.microsoft.RotaryEmbedding"}
)


def checked_file(path: Path, taken_names: frozenset[str]) -> tuple[ModelProto, list[str]]:
    """Parse a model file and check everything but its shapes; external data stays on disk.

    Parameters
    ----------
    path : Path
    taken_names : frozenset of str
        Names that files of external data may not have.

    Returns
    -------
    model : ModelProto
    locations : list of str
        Files of external data, relative to the model's folder.

    Raises
    ------
    InputError
        If the file cannot be read, or does not hold a model that can be run.
    """
    model = _parsed(path)
    count = sum(1 for _ in all_nodes(model.graph))
    if count > _MOST_NODES:
        raise InputError(
            f"{path}: the model has {count} nodes, and at most {_MOST_NODES} are imported, which "
            "takes minutes: simplify it, or export a part of it"
        )
    if not model.graph.output:
        raise InputError(f"{path}: the model has no outputs")
    if not graph_inputs(model.graph):
        raise InputError(f"{path}: the model has no inputs: there is nothing to run it on")
    outputs = [value.name for value in model.graph.output]
    twice = next((name for name in outputs if outputs.count(name) > 1), None)
    if twice is not None:
        raise InputError(
            f"{path}: output {twice!r} is listed twice: leave one, or give the other a name by an "
            "Identity node"
        )
    if model.graph.sparse_initializer:
        name = model.graph.sparse_initializer[0].values.name
        raise InputError(f"{path}: weight {name!r} is sparse: export the model with dense weights")
    locations = external_files(model, path.parent)
    taken = sorted(taken_names & set(locations))
    if taken:
        raise InputError(f"{path}: external data may not lie in a file named {taken[0]}")
    refuse_untuned(model)
    check_types(model)
    # Exporters that do not sort nodes are common.
    sort_nodes(model)
    try:
        _check(model)
    except Exception as error:  # noqa: BLE001 (the checker raises several kinds)
        reason = " ".join(str(error).split())
        # Exporters write operators in withdrawn forms, and converters leave functions at an older
        # operator set than the model's. onnxruntime runs both.
        if not any(known in reason for known in _ACCEPTED):
            raise InputError(f"{path} fails the ONNX checker: {reason}") from None
    return model, locations


def refuse_untuned(model: ModelProto) -> None:
    """Refuse a model with an operator that no tuned network contains.

    Raises
    ------
    InputError
        Naming the first such node.
    """
    for node in (n for part in (model.graph, *model.functions) for n in all_nodes(part)):
        if node.domain == _CLASSICAL:
            raise InputError(refusal(node, "is of classical machine learning, not of a network"))
        if operator_name(node) in _UNTUNED:
            raise InputError(refusal(node, "is an operator that nothing here tunes"))


def check_types(model: ModelProto) -> None:
    """Refuse models with inputs, outputs or weights of types that are not supported.

    Raises
    ------
    InputError
        Naming the first input, output or initializer and its type.
    """
    supported = ", ".join(type_name(element_type) for element_type in SUPPORTED_TYPES)
    values = [("input", value) for value in graph_inputs(model.graph)]
    values += [("output", value) for value in model.graph.output]
    for role, value in values:
        kind = value.type.WhichOneof("value")
        if kind not in ("tensor_type", None):
            word = kind.removesuffix("_type").replace("_", " ")
            raise InputError(
                f"{role} {value.name!r} is {'an' if word[0] in 'aeiou' else 'a'} {word}; only "
                f"tensors of {supported} are supported: give each of its tensors a name of its own"
            )
        element_type = value.type.tensor_type.elem_type
        # An output may leave its type to be inferred; an input may not.
        if element_type == TensorProto.UNDEFINED and role == "output":
            continue
        if element_type not in SUPPORTED_TYPES:
            raise InputError(
                f"{role} {value.name!r} holds {_words(element_type)}; supported are {supported}"
            )
    for tensor in model.graph.initializer:
        unknown = tensor.data_type not in TensorProto.DataType.values()
        if unknown or tensor.data_type in _NOT_NUMBERS:
            raise InputError(
                f"initializer {tensor.name!r} holds {_words(tensor.data_type)}; "
                f"supported are {supported}"
            )


def _words(element_type: int) -> str:
    if element_type not in TensorProto.DataType.values():
        return f"the unknown element type {element_type}"
    return TensorProto.DataType.Name(element_type).lower()


def _check(model: ModelProto) -> None:
    """Run ONNX's checker on each weight, and on a copy of the model without large weights.

    It cannot take a model above 2 GB, and refuses inputs and outputs of open rank, and outputs
    without a type. A user may bind the former, and inference may find both: the copy has them.
    """
    light_copy, weights = detach_weights(model)
    for tensor in weights:
        if tensor.data_location != TensorProto.EXTERNAL:
            onnx.checker.check_tensor(tensor)
    # Before version 4, initializers had to be inputs as well. No runtime requires it.
    light_copy.ir_version = max(light_copy.ir_version, _INITIALIZERS_APART)
    for value in [*light_copy.graph.input, *light_copy.graph.output]:
        value.type.tensor_type.shape.SetInParent()
        # Any type will do: the node that writes the output decides it.
        value.type.tensor_type.elem_type = value.type.tensor_type.elem_type or TensorProto.FLOAT
    onnx.checker.check_model(light_copy)


def _parsed(path: Path) -> ModelProto:
    if not path.exists():
        raise InputError(f"no such file: {path}")
    if not path.is_file():
        raise InputError(f"{path} is not a file: give the path of an .onnx file")
    if path.stat().st_size >= _PROTOBUF_LIMIT:
        raise InputError(
            f"{path} is larger than the 2 GB that ONNX can read: save it with external data"
        )
    model = ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except DecodeError:
        raise InputError(f"{path} is not an ONNX model, or it is truncated") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    # Protobuf parses an empty file, and some texts, as a message without fields.
    if not model.ir_version or not model.HasField("graph"):
        raise InputError(f"{path} is not an ONNX model, or it is truncated")
    return model


def digest_of(path: Path, locations: list[str]) -> str:
    """A digest of a model's content: SHA-256 of its files' digests, in hex digits."""
    digest = hashlib.sha256()
    for file in [path, *(path.parent / location for location in locations)]:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


# Smaller tensors are biases, scales and scalars, which are often all zero or all one.
LARGE_ELEMENTS = 64
# A constant that only these read is no weight, but a fill value, such as a first state of zeros.
_FILLING = frozenset({"Concat", "Expand", "Scatter", "ScatterElements", "ScatterND", "Where"})
_COMPARING = frozenset({"Equal", "IsNaN"})


def can_show_fault(model: ModelProto) -> bool:
    """Whether most elements of a simplified model's large weights are in weights that vary.

    If all weights of a layer are equal, a kernel that reads the wrong weight computes the right
    result.

    True for a model without large weights: its outputs vary with its inputs.
    """
    reading = (node for node in model.graph.node if node.op_type not in _FILLING)
    computing = {name for node in reading for name in node.input}
    large = [
        array_of(tensor)
        for tensor in model.graph.initializer
        if tensor.name in computing
        and is_float(tensor.data_type)
        and element_count(tensor) > LARGE_ELEMENTS
    ]
    constant = sum(each.size for each in large if (each == each.flat[0]).all())
    return 2 * constant < sum(each.size for each in large) or not large


def check_finite(model: ModelProto) -> None:
    """Refuse a model with NaN in its weights: its outputs could not be compared.

    NaN is allowed in constants that only fill or compare.

    Raises
    ------
    InputError
        Naming the first initializer that holds NaN.
    """
    computing = {
        name
        for node in all_nodes(model.graph)
        if node.op_type not in _FILLING | _COMPARING
        for name in node.input
    }
    for tensor in model.graph.initializer:
        if not is_float(tensor.data_type) or tensor.name not in computing:
            continue
        count = int(np.isnan(array_of(tensor).astype(np.float32, copy=False)).sum())
        if count:
            raise InputError(
                f"initializer {tensor.name!r} holds NaN ({count} of {element_count(tensor)} "
                "numbers): its training or its export went wrong, give a model with sound weights"
            )
