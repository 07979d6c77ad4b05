"""What onnxruntime computes, and how far a model's outputs are from it."""

from collections.abc import Sequence

import numpy as np

from fewtune.onnx_graph.session import OnnxruntimeSession


def relative_error(actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """Largest absolute difference over the largest absolute expected value, of the worst output.

    NaN or infinite if they differ and an output is not finite, or only zeros were expected.
    """
    errors = [0.0]
    for one, other in zip(actual, expected, strict=True):
        ours, theirs = np.asarray(one, np.float64), np.asarray(other, np.float64)
        assert ours.shape == theirs.shape
        if not np.array_equal(ours, theirs):
            errors.append(np.abs(ours - theirs).max() / np.abs(theirs).max())
    return float(np.max(errors))


def run_onnxruntime(model, inputs, threads):
    """The outputs of a model in onnxruntime."""
    return OnnxruntimeSession(model, threads).run(inputs)
