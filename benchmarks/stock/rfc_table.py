"""The table of RFC #4188 over the models on disk: used time and achieved performance.

    python benchmarks/stock/rfc_table.py [DIRECTORY]

Writes ``rfc_table.json`` and ``rfc_table.md`` into the directory (``results``). Files of
``stock_model.py`` in ``DIRECTORY/stock`` are compared with the selective results they belong to.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

sys.path.insert(0, str(Path(__file__).parents[2]))

from fewtune.artifacts import Comparison, Conditions
from fewtune.errors import InputError
from fewtune.report import tables
from fewtune.util.files import canonical_json, write_text
from fewtune.util.table import MISSING, Table, number, percent

JSON, MARKDOWN, FOLDER = "rfc_table.json", "rfc_table.md", "stock"


class StockResult(BaseModel):
    """Time and latency of one model's stock tuning, compared with its selective library.

    Times of tuning are in seconds, latencies in milliseconds. ``achieved_perf_pct`` is stock's
    latency over the selective one, ``used_time_pct`` the selective tuning time over stock's.
    """

    model_config = ConfigDict(frozen=True)

    model: str
    stock_tuning_s: float
    stock_trials: int
    stock_trials_per_task: int
    stock_tasks: int
    stock_latency_ms: float
    selective_tuning_s: float
    selective_latency_ms: float
    achieved_perf_pct: float
    achieved_perf_p10_pct: float
    achieved_perf_p90_pct: float
    used_time_pct: float
    max_relative_error: float
    conditions: Conditions
    note: str = ""


def read_stock(
    directory: Path, comparisons: Sequence[Comparison]
) -> tuple[dict[str, StockResult], list[str]]:
    """Stock results of these comparisons by model, and a line for each that was left out."""
    tuning_s = {each.model: each.selective_tuning_s for each in comparisons}
    found: dict[str, StockResult] = {}
    lines = []
    for path in sorted(directory.glob("*.json")):
        try:
            result = StockResult.model_validate_json(path.read_bytes())
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(step) for step in first["loc"])
            raise InputError(f"{path}: {place}: {first['msg']}; run the benchmark again") from None
        if result.model not in tuning_s:
            lines.append(f"{path} left out: {result.model} has no comparison here")
        elif tuning_s[result.model] != result.selective_tuning_s:
            lines.append(
                f"{path} left out: it is of another selective run "
                f"({result.selective_tuning_s:g} s of tuning, now {tuning_s[result.model]:g} s)"
            )
        else:
            found[result.model] = result
    return found, lines


def rfc_rows(
    comparisons: Sequence[Comparison], stock: Mapping[str, StockResult]
) -> list[dict[str, Any]]:
    """One object for each model, by name, with stock's figures or None."""
    rows = []
    for each in sorted(comparisons, key=lambda comparison: comparison.model):
        found = stock.get(each.model)
        rows.append(
            {
                **each.model_dump(mode="json", exclude={"kernels", "library_sha256"}),
                "stock_tuning_s": found.stock_tuning_s if found else None,
                "stock_latency_ms": found.stock_latency_ms if found else None,
                "used_time_of_stock_pct": found.used_time_pct if found else None,
                "achieved_over_stock_pct": found.achieved_perf_pct if found else None,
            }
        )
    return rows


def stock_markdown(results: Sequence[StockResult]) -> str:
    """Selective against stock tuning, with means over the models, conditions and remarks."""
    headings = "model,stock time s,stock latency ms,stock trials,selective time s"
    headings += ",selective latency ms,used time %,achieved perf % [p10 - p90]"
    rows = [
        [
            each.model,
            number(each.stock_tuning_s),
            number(each.stock_latency_ms),
            str(each.stock_trials),
            number(each.selective_tuning_s),
            number(each.selective_latency_ms),
            percent(each.used_time_pct),
            f"{percent(each.achieved_perf_pct)} "
            f"[{percent(each.achieved_perf_p10_pct)} - {percent(each.achieved_perf_p90_pct)}]",
        ]
        for each in results
    ]
    if len(results) > 1:
        used = tables.mean_texts([each.used_time_pct for each in results], percent, max)
        achieved = tables.mean_texts([each.achieved_perf_pct for each in results], percent, min)
        for label, *figures in zip(tables.MEAN_LABELS, used, achieved, strict=True):
            rows.append([label, *[MISSING] * 5, *figures])
    lines = tables.conditions_lines([(each.model, each.conditions) for each in results])
    lines += [f"{each.model}: {each.note}." for each in results if each.note]
    text = Table(headings.split(","), rows).markdown()
    return text + "".join(f"\n{line}\n" for line in lines)


def write_rfc_table(comparisons: Sequence[Comparison], directory: Path) -> list[str]:
    """Write the table in both forms; returns a line for each stock result that was left out."""
    stock, lines = read_stock(directory / FOLDER, comparisons)
    directory.mkdir(parents=True, exist_ok=True)
    write_text(directory / JSON, canonical_json(rfc_rows(comparisons, stock)))
    ordered = sorted(comparisons, key=lambda comparison: comparison.model)
    text = "# Selective against full tuning\n\n" + tables.comparisons_markdown(ordered)
    if stock:
        by_model = [stock[model] for model in sorted(stock)]
        text += "\n# Selective against stock MetaSchedule\n\n" + stock_markdown(by_model)
    write_text(directory / MARKDOWN, text)
    return lines


def main(directory: Path) -> None:
    """Write the table of the results on disk."""
    from fewtune.pipelines.checkout.project import find_root
    from fewtune.pipelines.checkout.results import read_results

    comparisons = tables.distinct_comparisons(read_results(find_root(), print))
    if not comparisons:
        raise SystemExit("no model was tuned both selectively and in full: fewtune run --all")
    for line in write_rfc_table(comparisons, directory):
        print(line)
    print(f"{directory / JSON}, {directory / MARKDOWN}: {len(comparisons)} models")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "results"))
