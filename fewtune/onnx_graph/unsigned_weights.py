"""Signed weights of products of bytes as unsigned ones, which onnxruntime multiplies exactly.

On x86 processors without VNNI it adds two products of unsigned and signed bytes in 16 bits, where
they saturate (1.31). Its own setting, ``session.x64quantprecision``, changes fewer operators, none
without its optimiser, and makes it refuse convolutions of signed data.
"""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper

from fewtune.onnx_graph.external_data import LightModel, array_of, is_apart, reference
from fewtune.onnx_graph.graph import all_nodes, operator_name, optional
from fewtune.onnx_graph.operators.builder import MICROSOFT

_DEQUANTIZE = "DequantizeLinear"
# The places of an operator's inputs: the data's zero point, and its weights with their zero points.
_OPERATORS: dict[str, tuple[int | None, dict[int, int]]] = {
    # Its optimiser makes products of bytes of what is dequantized.
    _DEQUANTIZE: (None, {0: 2}),
    "MatMulInteger": (2, {1: 3}),
    "QLinearConv": (2, {3: 5}),
    "QLinearMatMul": (2, {3: 5}),
    f"{MICROSOFT}.DynamicQuantizeLSTM": (None, {1: 9, 2: 11}),
    f"{MICROSOFT}.DynamicQuantizeMatMul": (None, {1: 3}),
    f"{MICROSOFT}.MatMulIntegerToFloat": (4, {1: 5}),
    f"{MICROSOFT}.QAttention": (6, {1: 7}),
    f"{MICROSOFT}.QGemm": (2, {3: 5}),
}


def with_unsigned_weights(given: LightModel) -> LightModel:
    """A model with uint8 in place of constant int8 weights, and their zero points moved along.

    Nodes of signed data stay: onnxruntime multiplies them exactly, and has no kernel of some for
    unsigned weights.
    """
    if not any(operator_name(node) in _OPERATORS for node in all_nodes(given.model.graph)):
        return given
    model, arrays = ModelProto(), dict(given.arrays)
    model.CopyFrom(given.model)
    graph = model.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}

    def unsigned(name: str, shape: tuple[int, ...]) -> str:
        made = f"{name or shape}/unsigned"
        if made not in tensors:
            signed = array_of(tensors[name]) if name else np.zeros(shape, np.int8)
            # Moves it by 128.
            values = signed.view(np.uint8) ^ np.uint8(128)
            tensors[made] = numpy_helper.from_array(values, made)
            if is_apart(TensorProto.UINT8, values.nbytes):
                arrays[made] = values
                tensors[made] = reference(made, TensorProto.UINT8, values)
            graph.initializer.append(tensors[made])
        return made

    replaced: set[str] = set()
    for node in all_nodes(graph):
        data_zero, weights = _OPERATORS.get(operator_name(node), (None, {}))
        places = [*weights, *weights.values()]
        names = optional(node.input, max([len(node.input), *(place + 1 for place in places)]))
        constants = [tensors.get(names[place]) for place in places if names[place]]
        data = tensors.get(names[data_zero]) if data_zero else None
        if not constants or not all(map(_is_signed, constants)) or _is_signed(data):
            continue
        replaced.update(names[place] for place in places)
        # An absent zero point is one number, or has the shape of its scales.
        scale = tensors.get(names[1]) if node.op_type == _DEQUANTIZE else None
        shape = tuple(scale.dims) if scale else ()
        for place in places:
            names[place] = unsigned(names[place], shape)
        node.input[:] = names
    # onnxruntime takes no array of a weight that nothing reads.
    unread = replaced.difference(*(node.input for node in all_nodes(graph)))
    for place in reversed(range(len(graph.initializer))):
        if graph.initializer[place].name in unread:
            arrays.pop(graph.initializer[place].name, None)
            del graph.initializer[place]
    return LightModel(model, arrays)


def _is_signed(tensor: TensorProto | None) -> bool:
    return tensor is not None and tensor.data_type == TensorProto.INT8
