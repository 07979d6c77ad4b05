"""What the outputs of every architecture with seeded weights have to be good for."""

import numpy as np
from onnx import ModelProto, shape_inference

from fewtune.onnx_graph.graph import attach_weights, detach_weights
from fewtune.verify.session import random_inputs, run_onnxruntime, tensor_specs

_SQUASHING = frozenset({"Softmax", "LogSoftmax", "Sigmoid"})
_SHAPE_ONLY = frozenset({"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"})


def assert_outputs_tell_inputs_apart(model: ModelProto) -> None:
    """Outputs are finite, of about unit size, and differ from one input to another."""
    model = with_logits(model)
    specs, _ = tensor_specs(model)
    first = run_onnxruntime(model, random_inputs(specs, 0), 2)[-1]
    second = run_onnxruntime(model, random_inputs(specs, 1), 2)[-1]
    assert np.isfinite(first).all()
    assert 0.1 < first.std() < 30
    assert np.abs(first - second).max() > 1e-3 * np.abs(first).max()


def with_logits(model: ModelProto) -> ModelProto:
    """Add the tensors before a final softmax or sigmoid as further outputs.

    After one, values are near zero or one for any input.
    """
    producers = {output: node for node in model.graph.node for output in node.output}
    logits = []
    for value in model.graph.output:
        node = producers.get(value.name)
        while node is not None and node.op_type in _SHAPE_ONLY:
            node = producers.get(node.input[0])
        if node is not None and node.op_type in _SQUASHING:
            logits.append(node.input[0])
    light_model, weights = detach_weights(model)
    inferred = shape_inference.infer_shapes(light_model, data_prop=True)
    known = {value.name: value for value in inferred.graph.value_info}
    light_model.graph.output.extend(known[name] for name in logits if name in known)
    return attach_weights(light_model, weights)
