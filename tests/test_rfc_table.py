"""The RFC's table over several models, as JSON and as markdown."""

from __future__ import annotations

import json
from pathlib import Path

from fewtune.rfc_table import JSON, MARKDOWN, rfc_rows, write_rfc_table
from tests import made_results as made


def test_a_row_a_model_with_its_conditions(tmp_path: Path) -> None:
    comparisons = [
        made.comparison("second", used=20.0, achieved=98.0),
        made.comparison("first", used=10.0, achieved=102.0),
    ]
    write_rfc_table(comparisons, tmp_path / "results")
    rows = json.loads((tmp_path / "results" / JSON).read_text())
    assert [row["model"] for row in rows] == ["first", "second"]
    first = rows[0]
    assert (first["used_time_pct"], first["achieved_perf_pct"]) == (10.0, 102.0)
    assert (first["stock_tuning_s"], first["stock_latency_ms"]) == (None, None)
    assert first["conditions"]["fingerprint"]["device"] == "Test CPU"
    assert rows == rfc_rows(comparisons[::-1])
    text = (tmp_path / "results" / MARKDOWN).read_text()
    assert "| geometric mean |" in text
    assert "| worst (most time, least perf) |" in text
    assert "Measured on Test CPU" in text


def test_the_same_results_are_the_same_bytes(tmp_path: Path) -> None:
    comparisons = [made.comparison("one"), made.comparison("two")]
    write_rfc_table(comparisons, tmp_path / "a")
    write_rfc_table(comparisons[::-1], tmp_path / "b")
    for name in (JSON, MARKDOWN):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
