"""The ablation's results as JSON and as a table."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from fewtune.artifacts import CompileReport, Conditions, Metrics, Selection, ShareReport, TuneReport
from fewtune.measure import interleave
from fewtune.report.conditions import conditions_lines
from fewtune.util.files import canonical_json, write_text
from fewtune.util.table import Table, number, percent

_NOTE = (
    "Representatives' records come from the full run's log; their seconds are those that the full "
    "run spent on these tasks, its start and default schedules left out. Sharing was measured "
    "anew for every variant. Used time is selecting, these seconds and sharing, over the full "
    "run's tuning seconds; performance is full's latency over the variant's, round by round."
)


def row_of(
    name: str,
    selection: Selection,
    selecting_s: float,
    tuned: TuneReport,
    shared: ShareReport,
    full_tuning_s: float,
    compiled: CompileReport,
) -> dict[str, Any]:
    """What is known of a variant before its library is measured."""
    spent_s = selecting_s + tuned.tuning_s + shared.sharing_s
    return {
        "variant": name,
        "method": selection.method,
        "representatives": len(selection.representatives),
        "dependents": len(selection.dependents) + len(selection.alone),
        "selecting_s": round(selecting_s, 3),
        "representative_tuning_s": tuned.tuning_s,
        "sharing_s": shared.sharing_s,
        "used_time_pct": 100 * spent_s / full_tuning_s,
        "trials": tuned.trials + shared.trials,
        "statuses": dict(sorted(Counter(line.status for line in shared.tasks).items())),
        "max_relative_error": compiled.max_relative_error,
    }


def measured_rows(
    rows: dict[str, dict[str, Any]], groups: list[dict[str, list[float]]]
) -> list[dict[str, Any]]:
    """The rows with latencies, and what they achieve of full tuning's in their own group."""
    finished = []
    for samples_s in groups:
        for name, taken in samples_s.items():
            if name in rows:
                finished.append(
                    {
                        **rows[name],
                        "latency_ms": interleave.latency_stats(taken).median_ms,
                        **interleave.achieved_pct(samples_s["full"], taken),
                    }
                )
    return finished


def write_results(
    model: str,
    rows: dict[str, dict[str, Any]],
    groups: list[dict[str, list[float]]],
    full: Metrics,
    conditions: Conditions,
    directory: Path,
) -> None:
    """Write ``MODEL.json`` and ``MODEL.md``.

    Parameters
    ----------
    model : str
    rows : dict of dict
        From `row_of`, by variant.
    groups : list of dict
        Seconds by variant, a dict for each group that was measured in turns; ``full`` and
        ``onnxruntime`` are in each.
    full : Metrics
        Of the full run.
    conditions : Conditions
    directory : Path
    """
    finished = measured_rows(rows, groups)
    baselines = {
        name: float(np.median([taken for samples_s in groups for taken in samples_s[name]])) * 1e3
        for name in ("full", "onnxruntime")
    }
    result = {
        "model": model,
        "full_tuning_s": full.tuning_s,
        "full_trials": full.trials,
        "full_representatives": full.representatives,
        "full_latency_ms": baselines["full"],
        "onnxruntime_latency_ms": baselines["onnxruntime"],
        "variants": finished,
        "conditions": conditions.model_dump(mode="json"),
        "note": _NOTE,
    }
    write_text(directory / f"{model}.json", canonical_json(result))
    conditions_text = "\n".join(conditions_lines([("", conditions)]))
    head = (
        f"# {model}: what each part is worth\n\n{_table(finished).markdown()}\n"
        f"Full tuning: {number(full.tuning_s)} s, {number(baselines['full'])} ms, "
        f"{full.representatives} tasks, {full.trials} trials; onnxruntime: "
        f"{number(baselines['onnxruntime'])} ms.\n\n"
    )
    write_text(directory / f"{model}.md", f"{head}{_NOTE}\n\n{conditions_text}\n")


def _table(rows: list[dict[str, Any]]) -> Table:
    headings = [
        "variant", "representatives", "dependents", "representatives' tuning s", "sharing s",
        "used time %", "latency ms", "achieved % [p10 - p90]", "trials", "max rel. error",
    ]  # fmt: skip
    texts = [
        [
            row["variant"],
            str(row["representatives"]),
            str(row["dependents"]),
            number(row["representative_tuning_s"]),
            number(row["sharing_s"]),
            percent(row["used_time_pct"]),
            number(row["latency_ms"]),
            f"{percent(row['achieved_perf_pct'])} [{percent(row['achieved_perf_p10_pct'])} - "
            f"{percent(row['achieved_perf_p90_pct'])}]",
            str(row["trials"]),
            f"{row['max_relative_error']:.1e}",
        ]
        for row in rows
    ]
    return Table(headings, texts)
