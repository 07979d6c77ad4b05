"""A model whose weights are bfloat16: what rounding them alone moves.

Each product's own rounding is drawn at random (`fewtune.verify.jitter`). That of a weight is the
same wherever the weight is used, so that a mean over places does not lose it.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, numpy_helper

from fewtune.onnx_graph.external_data import LightModel
from fewtune.onnx_graph.graph import copy_model
from fewtune.util.bfloat16 import rounded, widened

_PRODUCTS = frozenset({"Conv", "MatMul", "Gemm"})


def with_bf16_weights(given: LightModel) -> LightModel:
    """Round the constant second factors of products; the model is left as it is."""
    names = {node.input[1] for node in given.model.graph.node if node.op_type in _PRODUCTS}
    made = copy_model(given.model)
    for tensor in made.graph.initializer:
        is_float = tensor.data_type == TensorProto.FLOAT
        if is_float and tensor.name in names and tensor.name not in given.arrays:
            array = widened(rounded(numpy_helper.to_array(tensor)))
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    arrays = {
        name: widened(rounded(array)) if name in names and array.dtype == np.float32 else array
        for name, array in given.arrays.items()
    }
    return LightModel(made, arrays)
