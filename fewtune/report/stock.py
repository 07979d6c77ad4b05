"""Models that stock MetaSchedule tuned, compared with their selective results.

A benchmark tunes a model with TVM's own `tune_tasks`, measures it in turns with the selective
library, and writes one JSON file for each model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from fewtune.artifacts import Comparison, Conditions
from fewtune.errors import InputError
from fewtune.report.conditions import conditions_lines
from fewtune.report.tables import MEAN_LABELS, mean_texts
from fewtune.util.table import MISSING, Table, number, percent

FOLDER = "stock"


class StockResult(BaseModel):
    """Time and latency of one model's stock tuning, compared with its selective library.

    Times of tuning are in seconds, latencies in milliseconds. ``achieved_perf_pct`` is stock's
    latency over the selective one (median, p10 and p90 of rounds), ``used_time_pct`` the
    selective tuning time over stock's.
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
    """Read the stock results that belong to these comparisons.

    Parameters
    ----------
    directory : Path
        With ``MODEL.json`` files; it need not exist.
    comparisons : sequence of Comparison

    Returns
    -------
    results : dict of StockResult
        By model.
    lines : list of str
        One for each file that was left out: it was measured against another selective run.

    Raises
    ------
    InputError
        If a file is not what the benchmark writes.
    """
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


def stock_table(results: Sequence[StockResult]) -> Table:
    """Selective against stock tuning: one row for each model, with means over the models."""
    headings = [
        "model",
        "stock time s",
        "stock latency ms",
        "stock trials",
        "selective time s",
        "selective latency ms",
        "used time %",
        "achieved perf % [p10 - p90]",
    ]
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
        used = mean_texts([each.used_time_pct for each in results], percent, max)
        achieved = mean_texts([each.achieved_perf_pct for each in results], percent, min)
        for label, *figures in zip(MEAN_LABELS, used, achieved, strict=True):
            rows.append([label, *[MISSING] * 5, *figures])
    return Table(headings, rows)


def stock_markdown(results: Sequence[StockResult]) -> str:
    """`stock_table` with its conditions and the benchmark's remarks."""
    lines = conditions_lines([(each.model, each.conditions) for each in results])
    lines += [f"{each.model}: {each.note}." for each in results if each.note]
    return stock_table(results).markdown() + "".join(f"\n{line}\n" for line in lines)
