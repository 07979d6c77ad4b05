"""The RFC's table over several models, as JSON and as markdown."""

import json

import pytest

from benchmarks.stock.rfc_table import JSON, MARKDOWN, StockResult, write_rfc_table
from tests.made import results as made


def stock_result(
    model: str, selective_tuning_s: float = 250.0, achieved: float = 110.0
) -> StockResult:
    return StockResult(
        model=model,
        stock_tuning_s=5000.0,
        stock_trials=1920,
        stock_trials_per_task=64,
        stock_tasks=30,
        stock_latency_ms=44.0,
        selective_tuning_s=selective_tuning_s,
        selective_latency_ms=44.0 / achieved * 100,
        achieved_perf_pct=achieved,
        achieved_perf_p10_pct=achieved - 3,
        achieved_perf_p90_pct=achieved + 3,
        used_time_pct=100 * selective_tuning_s / 5000,
        max_relative_error=2.5e-6,
        conditions=made.conditions(),
        note="2 of stock's trials failed",
    )


def test_stock_results_are_merged(tmp_path):
    comparisons = [made.comparison("first"), made.comparison("second"), made.comparison("third")]
    stock = tmp_path / "stock"
    stock.mkdir()
    for result in (stock_result("first", achieved=110.0), stock_result("second", achieved=90.0)):
        (stock / f"{result.model}.json").write_text(result.model_dump_json())
    assert write_rfc_table(comparisons, tmp_path) == []
    first, _, third = json.loads((tmp_path / JSON).read_text())
    assert (first["stock_tuning_s"], first["stock_latency_ms"]) == (5000.0, 44.0)
    assert (first["used_time_of_stock_pct"], first["achieved_over_stock_pct"]) == (5.0, 110.0)
    assert first["speedup_over_onnxruntime"] == pytest.approx(0.9)
    assert third["stock_tuning_s"] is None
    assert third["achieved_over_stock_pct"] is None
    text = (tmp_path / MARKDOWN).read_text().split("# Selective against stock MetaSchedule")[1]
    assert "| first | 5000 | 44.0 | 1920 | 250 | 40.0 | 5.0 | 110.0 [107.0 - 113.0] |" in text
    assert "| arithmetic mean | - | - | - | - | - | 5.0 | 100.0 |" in text
    assert "| geometric mean | - | - | - | - | - | 5.0 | 99.5 |" in text
    assert "| worst | - | - | - | - | - | 5.0 | 90.0 |" in text
    assert "first: 2 of stock's trials failed." in text
