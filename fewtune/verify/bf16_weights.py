"""A model with weights rounded to bfloat16, to measure the effect of that rounding.

Other rounding is simulated at random (`fewtune.verify.jitter`). The error of a rounded weight is
the same wherever the weight is used, so a mean over elements does not average it out.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, numpy_helper

from fewtune.onnx_graph.external_data import LightModel
from fewtune.onnx_graph.graph import copy_model
from fewtune.util.bfloat16 import rounded, widened

_PRODUCTS = frozenset({"Conv", "MatMul", "Gemm"})


def with_bf16_weights(given: LightModel) -> LightModel:
    """Copy of a model with the constant second operands of products rounded to bfloat16."""
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
