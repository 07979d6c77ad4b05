"""What the outputs of every architecture with seeded weights have to be good for."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

from fewtune.model.reference import random_inputs, run_onnxruntime, tensor_specs, with_logits


def assert_outputs_tell_inputs_apart(model: ModelProto) -> None:
    """Outputs are finite, of about unit size, and differ from one input to another."""
    model = with_logits(model)
    specs, _ = tensor_specs(model)
    first = run_onnxruntime(model, random_inputs(specs, 0), 2)[-1]
    second = run_onnxruntime(model, random_inputs(specs, 1), 2)[-1]
    assert np.isfinite(first).all()
    assert 0.1 < first.std() < 30
    assert np.abs(first - second).max() > 1e-3 * np.abs(first).max()
