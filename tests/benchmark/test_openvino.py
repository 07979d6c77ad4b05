"""OpenVINO as an optional peer: where it is installed, and where it fails."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from fewtune.artifacts import CompileReport
from fewtune.benchmark import peers
from fewtune.benchmark import variants as variants_module
from fewtune.benchmark.options import BenchmarkOptions
from fewtune.benchmark.peers import OPENVINO, OpenvinoSession, openvino_version
from fewtune.benchmark.variants import Variants
from fewtune.errors import InputError
from fewtune.measure.interleave import ratio_if_measured
from tests import tuned_tiny
from tests.made import onnx_text

installed = pytest.mark.skipif(openvino_version() is None, reason="openvino is not installed")


def model_of(operator: str, directory: Path) -> Path:
    """A model of one operator on two inputs, not in the order of the alphabet."""
    inputs, node = "float[2,3] second, float[2,3] first", f"out = {operator} (second, first)"
    model = onnx_text.model_of(f"({inputs}) => (float[2,3] out) {{{node}}}")
    path = directory / "model.onnx"
    onnx.save(model, path)
    return path


@pytest.fixture
def two_inputs():
    return {
        "first": np.full((2, 3), 2.0, np.float32),
        "second": np.arange(6, dtype=np.float32).reshape(2, 3),
    }


class FakeRequest:
    """What an inference request of OpenVINO is asked here."""

    def __init__(self) -> None:
        self.given: dict[str, np.ndarray] = {}

    def set_tensor(self, port: SimpleNamespace, tensor: np.ndarray) -> None:
        self.given[min(port.get_names())] = tensor

    def infer(self, share_outputs: bool) -> dict[str, np.ndarray]:
        assert share_outputs
        return {"out": self.given["second"] - self.given["first"]}


class FakeCore:
    """OpenVINO's border: compiles, or refuses as it does."""

    options: dict[str, str] = {}
    refusal: str | None = None

    def compile_model(self, model: Path, device: str, options: dict[str, str]) -> SimpleNamespace:
        assert model.is_file() and device == "CPU"
        if self.refusal is not None:
            raise RuntimeError(self.refusal)
        FakeCore.options = options
        names = ("second", "first")
        inputs = [SimpleNamespace(get_names=lambda name=name: {name}) for name in names]
        return SimpleNamespace(inputs=inputs, create_infer_request=FakeRequest)


@pytest.fixture
def faked(monkeypatch):
    """OpenVINO, faked at its own border, where it is not installed."""
    fake = SimpleNamespace(Core=FakeCore, Tensor=lambda array: array)
    monkeypatch.setitem(sys.modules, OPENVINO, fake)


@pytest.mark.usefixtures("faked")
def test_the_peer_is_set_for_latency_in_f32_with_the_same_threads(tmp_path, two_inputs):
    session = OpenvinoSession(model_of("Sub", tmp_path), 2, two_inputs)
    assert FakeCore.options["PERFORMANCE_HINT"] == "LATENCY"
    assert FakeCore.options["INFERENCE_PRECISION_HINT"] == "f32"
    assert FakeCore.options["INFERENCE_NUM_THREADS"] == "2"
    np.testing.assert_array_equal(session.outputs()[0], two_inputs["second"] - 2)


@pytest.mark.usefixtures("faked")
def test_a_model_that_it_cannot_read_is_refused_by_what_is_missing(
    tmp_path, two_inputs, monkeypatch
):
    report = "Exception from a.cpp:84:\nCheck 'false' failed at b.cpp:1:\n\nSummary:\n"
    monkeypatch.setattr(FakeCore, "refusal", f"{report}-- Conversion is failed for: Conv-16\n")
    with pytest.raises(InputError, match=r"OpenVINO cannot run .*: Conversion is failed for: Conv"):
        OpenvinoSession(model_of("Sub", tmp_path), 2, two_inputs)


@installed
def test_openvino_itself_computes_what_the_model_says(tmp_path, two_inputs):
    session = OpenvinoSession(model_of("Sub", tmp_path), 1, two_inputs)
    np.testing.assert_array_equal(session.outputs()[0], two_inputs["second"] - 2)


@installed
def test_openvino_itself_names_the_operator_that_it_lacks(tmp_path, two_inputs):
    with pytest.raises(InputError, match="NoSuchOperator"):
        OpenvinoSession(model_of("NoSuchOperator", tmp_path), 1, two_inputs)


class Refusing:
    """A peer that can run no model."""

    def __init__(self, *_: object) -> None:
        raise InputError("OpenVINO cannot run the model: no Conv")


class Running:
    """A peer that runs any model."""

    def __init__(self, *_: object) -> None:
        self.run = lambda: None


def variants_beside(peer: type, monkeypatch: pytest.MonkeyPatch) -> Variants:
    monkeypatch.setattr(variants_module, "openvino_version", lambda: "2026.4.1")
    monkeypatch.setattr(variants_module, "OpenvinoSession", peer)
    compiled = tuned_tiny.compiled()
    return Variants(
        tuned_tiny.imported(),
        {"tuned": compiled / CompileReport.read(compiled).library},
        tuned_tiny.fingerprint(),
        BenchmarkOptions(rounds=3, copies=2),
        untuned=False,
    )


@pytest.mark.slow
def test_the_peer_takes_its_turns_beside_the_others(monkeypatch):
    variants = variants_beside(Running, monkeypatch)
    assert len(variants.runs[OPENVINO]) == variants.options.copies
    assert variants.peers == {OPENVINO: "2026.4.1"}
    assert len(variants.measured(3)[OPENVINO]) == 3


@pytest.mark.slow
def test_a_run_goes_on_without_a_peer_that_cannot_run_the_model(monkeypatch):
    variants = variants_beside(Refusing, monkeypatch)
    assert OPENVINO not in variants.runs
    assert variants.peers == {}
    assert variants.remarks == ["OpenVINO cannot run the model: no Conv"]
    samples = variants.measured(3)
    assert ratio_if_measured(samples, OPENVINO, "tuned") is None


def test_openvino_is_no_dependency(monkeypatch):
    def missing(_: str) -> str:
        raise peers.PackageNotFoundError

    monkeypatch.setattr(peers, "version", missing)
    assert openvino_version() is None
