"""A library starts in a process of its own, beside onnxruntime."""

import pytest

from fewtune.benchmark.start import start_figures
from tests import tuned_tiny

pytestmark = pytest.mark.slow


def test_both_runtimes_give_a_first_output():
    onnx = tuned_tiny.imported() / "model.onnx"
    figures = start_figures(tuned_tiny.compiled() / "model.so", onnx, rounds=1)
    assert min(figures) > 0


def test_a_model_that_does_not_start_is_named(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(RuntimeError, match="onnxruntime could not start"):
        start_figures(tuned_tiny.compiled() / "model.so", tmp_path / "model.onnx", rounds=1)
