"""The table of RFC #4188 over several models: used time and achieved performance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fewtune.artifacts import Comparison
from fewtune.report import tables
from fewtune.report.stock import FOLDER, StockResult, read_stock, stock_markdown
from fewtune.util.files import canonical_json, write_text

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
    "speedup_over_onnxruntime",
    "full_speedup_over_onnxruntime",
    "full_tuning_stolen_pct",
    "selective_tuning_stolen_pct",
    "measuring_stolen_pct",
    "core_states",
    "full_trials",
    "selective_trials",
    "max_relative_error",
    "tasks",
    "representatives",
)


def rfc_rows(
    comparisons: Sequence[Comparison], stock: Mapping[str, StockResult] | None = None
) -> list[dict[str, Any]]:
    """One object for each model, by name.

    The figures are those of one comparison, in which all variants of a model were measured in
    turns.

    Parameters
    ----------
    comparisons : sequence of Comparison
    stock : mapping of StockResult, optional
        By model. Stock MetaSchedule is not part of a run: without it, its figures are None.
    """
    rows = []
    for each in sorted(comparisons, key=lambda comparison: comparison.model):
        fields = each.model_dump(mode="json")
        found = (stock or {}).get(each.model)
        rows.append(
            {
                **{name: fields[name] for name in _FIGURES},
                "stock_tuning_s": found.stock_tuning_s if found else None,
                "stock_latency_ms": found.stock_latency_ms if found else None,
                "used_time_of_stock_pct": found.used_time_pct if found else None,
                "achieved_over_stock_pct": found.achieved_perf_pct if found else None,
                "conditions": fields["conditions"],
            }
        )
    return rows


def write_rfc_table(
    comparisons: Sequence[Comparison], directory: Path, stock_directory: Path | None = None
) -> list[str]:
    """Write the table as JSON and, with its means and its worst model, as markdown.

    Parameters
    ----------
    comparisons : sequence of Comparison
    directory : Path
        Gets both files.
    stock_directory : Path, optional
        With the results of stock MetaSchedule; ``stock`` in ``directory`` unless given.

    Returns
    -------
    lines : list of str
        The results of stock MetaSchedule that were left out, with the reasons.

    Raises
    ------
    InputError
        As `fewtune.report.stock.read_stock`.
    """
    stock, lines = read_stock(stock_directory or directory / FOLDER, comparisons)
    directory.mkdir(parents=True, exist_ok=True)
    write_text(directory / JSON, canonical_json(rfc_rows(comparisons, stock)))
    ordered = sorted(comparisons, key=lambda comparison: comparison.model)
    text = "# Selective against full tuning\n\n" + tables.comparisons_markdown(ordered)
    if stock:
        by_model = [stock[model] for model in sorted(stock)]
        text += "\n# Selective against stock MetaSchedule\n\n" + stock_markdown(by_model)
    write_text(directory / MARKDOWN, text)
    return lines
