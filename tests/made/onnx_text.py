"""Models in ONNX's text form, with their constants as arrays."""

from typing import Any

import numpy as np
from onnx import ModelProto, numpy_helper, parser


def model_of(text: str, opset: int = 17, **constants: Any) -> ModelProto:
    """A model of ``(inputs) => (outputs) { nodes }``, and the constants that its nodes read."""
    opsets = f'"": {opset}, "com.microsoft": 1'
    model = parser.parse_model(f"<ir_version: 8, opset_import: [{opsets}]> model {text}")
    for name, value in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return model


def attributes(**given: Any) -> str:
    """Attributes of a node in that form."""
    texts = [f'{n} = "{v}"' if isinstance(v, str) else f"{n} = {v}" for n, v in given.items()]
    return f"<{', '.join(texts)}>" if texts else ""
