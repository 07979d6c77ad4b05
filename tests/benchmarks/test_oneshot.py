"""The one-shot benchmark's table, and what it says where there is nothing to compare with."""

import pytest

from benchmarks.oneshot import models_tuned, table
from fewtune.errors import InputError
from stages.paths import Places


def test_the_table_ends_with_geometric_means():
    row = {"seconds": 1.5, "against_tuning_s": 80.0, "latency_ms": 3.0}
    rows = [
        {**row, "model": "a", "achieved_pct": 80.0, "x_onnxruntime": 1.0},
        {**row, "model": "b", "achieved_pct": 125.0, "x_onnxruntime": 4.0},
    ]
    last = table(rows).strip().splitlines()[-1]
    assert "geometric mean" in last
    assert "100" in last
    assert "2.00" in last


def test_models_with_a_measured_run_are_found(tmp_path):
    with pytest.raises(InputError, match="--strategy full"):
        models_tuned(Places(tmp_path), "full")
    (tmp_path / "out" / "net" / "full" / "compile").mkdir(parents=True)
    (tmp_path / "out" / "net" / "full" / "compile" / "compile.json").write_text("{}")
    assert models_tuned(Places(tmp_path), "full") == ["net"]
