"""Whether a comparison of outputs can find a fault, given a model's weights.

If all weights of a layer are equal, a kernel that reads the wrong weight computes the right result.
"""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, TensorProto

from fewtune.errors import InputError
from fewtune.onnx_graph.external_data import array_of
from fewtune.onnx_graph.graph import all_nodes, element_count, is_float

# Smaller tensors are biases, scales and scalars, which are often all zero or all one.
LARGE_ELEMENTS = 64
# A constant that only these read is no weight, but a fill value, such as a first state of zeros.
_FILLING = frozenset({"Concat", "Expand", "Scatter", "ScatterElements", "ScatterND", "Where"})
_COMPARING = frozenset({"Equal", "IsNaN"})


def can_show_fault(model: ModelProto) -> bool:
    """Whether most elements of a simplified model's large weights are in weights that vary.

    True for a model without large weights: its outputs vary with its inputs.
    """
    reading = (node for node in model.graph.node if node.op_type not in _FILLING)
    computing = {name for node in reading for name in node.input}
    large = [
        tensor
        for tensor in model.graph.initializer
        if tensor.name in computing
        and is_float(tensor.data_type)
        and element_count(tensor) > LARGE_ELEMENTS
    ]
    constant = sum(element_count(tensor) for tensor in large if _holds_one_value(tensor))
    return 2 * constant < sum(map(element_count, large)) or not large


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
        count = int(np.isnan(array_of(tensor).astype(np.float32)).sum())
        if count:
            raise InputError(
                f"initializer {tensor.name!r} holds NaN ({count} of {element_count(tensor)} "
                "numbers): its training or its export went wrong, give a model with sound weights"
            )


def _holds_one_value(tensor: TensorProto) -> bool:
    values = array_of(tensor).ravel()
    # Most weights vary within their first elements: the rest is read only if those are equal.
    first = values[:LARGE_ELEMENTS]
    return bool(np.all(first == values[0]) and np.all(values == values[0]))
