"""Counts a model's multiply-adds from the shapes in its graph."""

from __future__ import annotations

import math

from onnx import ModelProto, NodeProto, shape_inference

from fewtune.errors import InputError
from fewtune.onnx_graph.graph import detach_weights, static_shape


def multiply_adds(model: ModelProto) -> int:
    """Count the multiply-adds of convolutions and matrix products.

    Papers call these FLOPs, GMACs or billions of operations, and leave out everything else as well.

    Parameters
    ----------
    model : ModelProto
        With static shapes; its weights need no values.

    Returns
    -------
    count : int
        Of ``Conv``, ``ConvTranspose``, ``Gemm`` and ``MatMul`` nodes of the main graph.

    Raises
    ------
    InputError
        If the shape of a counted operator is not known.
    """
    light_model, _ = detach_weights(model)
    inferred = shape_inference.infer_shapes(light_model, data_prop=True).graph
    shapes = {tensor.name: list(tensor.dims) for tensor in inferred.initializer}
    for value in [*inferred.input, *inferred.value_info, *inferred.output]:
        shape = static_shape(value)
        if shape is not None:
            shapes[value.name] = shape
    return sum(_node_multiply_adds(node, shapes) for node in inferred.node)


def _node_multiply_adds(node: NodeProto, shapes: dict[str, list[int]]) -> int:
    if node.op_type not in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
        return 0
    try:
        first, second = (shapes[name] for name in node.input[:2])
        output = shapes[node.output[0]]
    except KeyError as missing:
        raise InputError(
            f"{node.op_type} {node.name!r} cannot be counted: the shape of {missing} is not known"
        ) from None
    if node.op_type == "Conv":
        return math.prod(output) * math.prod(second[1:])
    if node.op_type == "ConvTranspose":
        return math.prod(first) * math.prod(second[1:])
    transposed = any(a.name == "transA" and a.i for a in node.attribute)
    return math.prod(output) * first[0 if transposed else -1]
