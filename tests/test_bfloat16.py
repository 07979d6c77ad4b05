"""A small network in bfloat16, tuned, shared, compiled and checked as any other."""

import numpy as np
import onnx
import pytest

import fewtune
from fewtune.artifacts import ImportReport, Metrics
from fewtune.model.lower_checked import has_bf16
from fewtune.verify.session import run_onnxruntime
from tests.quantised_models import network
from tests.tuned_tiny import target

pytestmark = pytest.mark.slow

QUICK = {
    "import_model": {"precision": "bf16"},
    "benchmark": {"rounds": 3, "copies": 1},
    "share_schedules": {"finals": 0, "trials_per_task": 1},
}


def test_a_network_in_bfloat16_is_tuned_and_right(tmp_path):
    path = tmp_path / "small.onnx"
    model = network(np.random.default_rng(0))
    onnx.save(model, path)
    tuned = fewtune.tune(path, trials=2, out=tmp_path / "out", options=QUICK)
    report = ImportReport.read(tuned.directory / "import")
    said = [each for each in [*report.notes, *report.left_out] if "bf16" in each]
    assert said
    if has_bf16(target()):
        assert not report.left_out
        assert report.allowances <= 1
        # More than rounding to float32, less than rounding to eleven bits.
        assert 1e-5 < report.max_relative_error < 1e-2
    assert Metrics.read(tuned.directory / "benchmark").latency_ms > 0
    feeds = {"x": np.random.default_rng(1).standard_normal((1, 3, 17, 17)).astype(np.float32)}
    (actual,) = fewtune.load(tuned.library)(**feeds).values()
    (expected,) = run_onnxruntime(model, feeds, 1)
    assert np.abs(actual - expected).max() <= np.abs(expected).max() / 50
