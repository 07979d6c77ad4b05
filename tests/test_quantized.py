"""A small quantized network, tuned, shared, compiled and checked as any other."""

import numpy as np
import onnx
import pytest

import fewtune
from fewtune.artifacts import ImportReport, Metrics
from fewtune.verify.session import run_onnxruntime
from tests.quantized_models import quantized_network

pytestmark = pytest.mark.slow

QUICK = {
    "benchmark": {"rounds": 3, "copies": 1},
    "share_schedules": {"finals": 0, "trials_per_task": 1},
}


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    directory = tmp_path_factory.mktemp("quantized")
    model, feeds = quantized_network(directory)
    onnx.save(model, directory / "small-int8.onnx")
    return model, directory / "small-int8.onnx", feeds


def test_a_quantized_network_is_tuned_and_right(quantized):
    model, path, feeds = quantized
    tuned = fewtune.tune(path, trials=2, out=path.parent / "out", options=QUICK)
    report = ImportReport.read(tuned.directory / "import")
    assert not report.left_out
    assert report.allowances <= 1
    assert Metrics.read(tuned.directory / "benchmark").latency_ms > 0
    (actual,) = fewtune.load(tuned.library)(**feeds).values()
    (expected,) = run_onnxruntime(model, feeds, 1)
    assert np.abs(actual - expected).max() <= np.abs(expected).max() / 100
