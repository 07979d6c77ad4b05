"""A small quantised network, tuned, shared, compiled and checked as any other."""

import numpy as np
import onnx
import pytest

import fewtune
from fewtune.artifacts import ImportReport, Metrics
from fewtune.verify.session import run_onnxruntime
from tests.quantised_models import quantised_network

pytestmark = pytest.mark.slow

QUICK = {
    "benchmark": {"rounds": 3, "copies": 1},
    "share_schedules": {"finals": 0, "trials_per_task": 1},
}


@pytest.fixture(scope="module")
def quantised(tmp_path_factory):
    directory = tmp_path_factory.mktemp("quantised")
    model, feeds = quantised_network(directory)
    onnx.save(model, directory / "small-int8.onnx")
    return model, directory / "small-int8.onnx", feeds


def test_a_quantised_network_is_tuned_and_right(quantised):
    model, path, feeds = quantised
    tuned = fewtune.tune(path, trials=2, out=path.parent / "out", options=QUICK)
    report = ImportReport.read(tuned.directory / "import")
    assert not report.left_out
    assert report.allowances <= 1
    assert Metrics.read(tuned.directory / "benchmark").latency_ms > 0
    (actual,) = fewtune.load(tuned.library)(**feeds).values()
    (expected,) = run_onnxruntime(model, feeds, 1)
    assert np.abs(actual - expected).max() <= np.abs(expected).max() / 100
