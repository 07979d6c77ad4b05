"""OpenVINO as an optional peer: where it is installed, and where it fails."""

import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from fewtune.benchmark import variants as variants_module
from fewtune.benchmark.interleave import ratio_if_measured
from fewtune.benchmark.peers import OPENVINO, OpenvinoSession
from fewtune.benchmark.variants import Variants
from fewtune.errors import InputError
from fewtune.options import BenchmarkOptions
from tests.benchmark.test_benchmark import tiny_variants


def test_the_peer_is_set_for_latency_in_f32_with_the_same_threads(monkeypatch):
    """OpenVINO is faked at its own border: it need not be installed."""
    package, port = mock.MagicMock(Tensor=lambda array: array), mock.Mock()
    port.get_names.return_value = {"x"}
    compiles = package.Core.return_value.compile_model
    compiles.return_value.inputs = [port]
    monkeypatch.setitem(sys.modules, OPENVINO, package)
    given = np.ones((2, 3), np.float32)
    OpenvinoSession(Path("model.onnx"), 2, {"x": given})
    (_, device, options) = compiles.call_args.args
    assert (device, options["PERFORMANCE_HINT"]) == ("CPU", "LATENCY")
    assert options["INFERENCE_PRECISION_HINT"] == "f32"
    assert options["INFERENCE_NUM_THREADS"] == "2"
    request = compiles.return_value.create_infer_request.return_value
    request.set_tensor.assert_called_once_with(port, given)


class Refusing:
    """A peer that can run no model."""

    def __init__(self, *_: object) -> None:
        raise InputError("OpenVINO cannot run the model: no Conv")


def variants_beside(peer: type, monkeypatch: pytest.MonkeyPatch) -> Variants:
    monkeypatch.setattr(variants_module, "openvino_version", lambda: "2026.4.1")
    monkeypatch.setattr(variants_module, "OpenvinoSession", peer)
    return tiny_variants(BenchmarkOptions(rounds=3, copies=2, wait_s=0), untuned=False)


@pytest.mark.slow
def test_a_run_goes_on_without_a_peer_that_cannot_run_the_model(monkeypatch):
    variants = variants_beside(Refusing, monkeypatch)
    assert OPENVINO not in variants.runs
    assert variants.peers == {}
    assert variants.remarks == ["OpenVINO cannot run the model: no Conv"]
    samples = variants.measured(3)
    assert ratio_if_measured(samples, OPENVINO, "tuned") is None
