"""The table of RFC #4188 over several models: what selection costs and what it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fewtune import report
from fewtune.artifacts import Comparison
from fewtune.files import canonical_json, write_text

JSON, MARKDOWN = "rfc_table.json", "rfc_table.md"
_FIGURES = (
    "model",
    "full_tuning_s",
    "full_latency_ms",
    "selective_tuning_s",
    "selective_latency_ms",
    "untuned_latency_ms",
    "onnxruntime_latency_ms",
    "used_time_pct",
    "achieved_perf_pct",
    "achieved_perf_p10_pct",
    "achieved_perf_p90_pct",
    "full_trials",
    "selective_trials",
    "max_relative_error",
    "tasks",
    "representatives",
)


def rfc_rows(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """One object a model, by name.

    The figures are those of one comparison, in which all variants of a model were measured in
    turns. Stock MetaSchedule is not part of a run: its two figures are None.
    """
    rows = []
    for each in sorted(comparisons, key=lambda comparison: comparison.model):
        told = each.model_dump(mode="json")
        rows.append(
            {
                **{name: told[name] for name in _FIGURES},
                "stock_tuning_s": None,
                "stock_latency_ms": None,
                "conditions": told["conditions"],
            }
        )
    return rows


def write_rfc_table(comparisons: Sequence[Comparison], directory: Path) -> None:
    """Write the table as JSON and, with its means and its worst model, as markdown."""
    directory.mkdir(parents=True, exist_ok=True)
    write_text(directory / JSON, canonical_json(rfc_rows(comparisons)))
    ordered = sorted(comparisons, key=lambda comparison: comparison.model)
    heading = "# Selective against full tuning\n\n"
    write_text(directory / MARKDOWN, heading + report.comparisons_markdown(ordered))
