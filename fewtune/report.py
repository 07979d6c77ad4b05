"""Tables of results, from the artifacts alone: equal artifacts give equal bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from fewtune.artifacts import BenchmarkReport, Comparison, Conditions, LatencyStats, Metrics
from fewtune.table import MISSING, Table, number, percent

_TUNED, _UNTUNED, _REFERENCE = "tuned", "untuned", "onnxruntime"


@dataclass(frozen=True)
class Result:
    """One result: a model under a strategy.

    Parameters
    ----------
    benchmark : BenchmarkReport
    metrics : Metrics
    comparison : Comparison, optional
        Selective against full of the same model, if it was made of this very result
        (`belongs`).
    """

    benchmark: BenchmarkReport
    metrics: Metrics
    comparison: Comparison | None = None

    @property
    def model(self) -> str:
        """The model's name."""
        return self.benchmark.model

    @property
    def strategy(self) -> str:
        """The strategy's name."""
        return self.benchmark.strategy


def belongs(comparison: Comparison, selective: Metrics | None, full: Metrics | None) -> bool:
    """Whether a comparison was made of these results, and not of earlier ones."""
    return (
        selective is not None
        and full is not None
        and comparison.selective_tuning_s == selective.tuning_s
        and comparison.full_tuning_s == full.tuning_s
    )


def results_table(results: Sequence[Result]) -> Table:
    """One row a result; times in the units that the headings name."""
    headings = [
        "model",
        "strategy",
        "tuning s",
        "latency ms [p10 - p90]",
        "untuned ms",
        "onnxruntime ms",
        "x over onnxruntime",
        "used time %",
        "achieved %",
        "tuned/tasks",
        "trials",
        "max rel. error",
    ]
    rows = [_result_row(result) for result in results]
    return Table(headings, rows, frozenset({0, 1}))


def _result_row(result: Result) -> list[str]:
    metrics, variants = result.metrics, result.benchmark.variants
    comparison = result.comparison
    return [
        result.model,
        result.strategy,
        number(metrics.tuning_s),
        _latency(variants.get(_TUNED), metrics.latency_ms),
        number(metrics.untuned_latency_ms),
        number(metrics.onnxruntime_latency_ms),
        f"{metrics.speedup_over_onnxruntime:.2f}",
        percent(comparison.used_time_pct if comparison else None),
        percent(comparison.achieved_perf_pct if comparison else None),
        f"{metrics.representatives}/{metrics.tasks}",
        str(metrics.trials),
        f"{metrics.max_relative_error:.1e}",
    ]


def _latency(stats: LatencyStats | None, median_ms: float) -> str:
    if stats is None:
        return number(median_ms)
    return f"{number(stats.median_ms)} [{number(stats.p10_ms)} - {number(stats.p90_ms)}]"


def comparison_table(comparisons: Sequence[Comparison]) -> Table:
    """Selective against full tuning, the table of TVM's RFC 4188 with onnxruntime beside it.

    Means are over the models; the RFC gives the arithmetic one, which large values pull up.
    """
    headings = [
        "model",
        "full time s",
        "full latency ms",
        "selective time s",
        "selective latency ms",
        "used time %",
        "achieved perf %",
        "onnxruntime ms",
        "untuned ms",
    ]
    rows = [
        [
            each.model,
            number(each.full_tuning_s),
            number(each.full_latency_ms),
            number(each.selective_tuning_s),
            number(each.selective_latency_ms),
            percent(each.used_time_pct),
            percent(each.achieved_perf_pct),
            number(each.onnxruntime_latency_ms),
            number(each.untuned_latency_ms),
        ]
        for each in comparisons
    ]
    if len(comparisons) > 1:
        used = [each.used_time_pct for each in comparisons]
        achieved = [each.achieved_perf_pct for each in comparisons]
        gap = [MISSING] * 4
        for label, figures in (
            ("arithmetic mean", (sum(used) / len(used), sum(achieved) / len(achieved))),
            ("geometric mean", (_geometric_mean(used), _geometric_mean(achieved))),
            ("worst (most time, least perf)", (max(used), min(achieved))),
        ):
            rows.append([label, *gap, *map(percent, figures), MISSING, MISSING])
    return Table(headings, rows)


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(math.log(value) for value in values) / len(values))


def kernel_table(report: BenchmarkReport) -> Table:
    """The model's kernels, the one that takes most time first."""
    headings = [
        "task",
        "calls",
        "latency ms",
        "share %",
        "GFLOPS",
        "schedule",
        "donor",
    ]
    ordered = sorted(report.kernels, key=lambda row: (-(row.share or 0.0), row.task))
    rows = [
        [
            row.task,
            str(row.weight),
            number(row.latency_ms),
            percent(None if row.share is None else 100 * row.share),
            number(row.gflops),
            row.schedule,
            row.donor or MISSING,
        ]
        for row in ordered
    ]
    return Table(headings, rows, frozenset({0, 5, 6}))


def target_name(target: str) -> str:
    """A TVM target in a few words: its kind and processor, such as ``llvm znver5``."""
    try:
        config = json.loads(target)
    except ValueError:
        return target
    if not isinstance(config, dict):
        return str(config)
    processor = config.get("mcpu") or config.get("arch")
    return " ".join(str(word) for word in (config.get("kind"), processor) if word)


def conditions_text(conditions: Conditions) -> str:
    """Under which figures hold, in one line of text without its end."""
    machine = conditions.fingerprint
    versions = ", ".join(f"{name} {version}" for name, version in sorted(machine.versions.items()))
    return (
        f"{machine.device}, target {target_name(machine.target)}, {machine.threads} threads; "
        f"{conditions.trials_per_task} trials a task, {conditions.rounds} rounds, "
        f"seed {conditions.seed}; {conditions.date}; {versions}"
    )


def conditions_lines(labelled: Sequence[tuple[str, Conditions]]) -> list[str]:
    """One line for each set of conditions; labelled only where there are several.

    Parameters
    ----------
    labelled : sequence of (str, Conditions)
        What was measured, and under what.
    """
    groups: dict[str, list[str]] = {}
    for label, conditions in labelled:
        # Results of one session differ in the minute they ended and in nothing that matters.
        key = conditions.model_copy(update={"date": conditions.date[:10]})
        groups.setdefault(conditions_text(key), []).append(label)
    if len(groups) == 1:
        return [f"Measured on {text}." for text in groups]
    return [f"{', '.join(labels)}: measured on {text}." for text, labels in groups.items()]


def results_conditions(results: Sequence[Result]) -> list[str]:
    """`conditions_lines` of results."""
    return conditions_lines(
        [(f"{result.model} {result.strategy}", result.benchmark.conditions) for result in results]
    )


def results_markdown(results: Sequence[Result]) -> str:
    """The results table, the comparison of strategies where it was made, and the conditions."""
    if not results:
        return "No results yet.\n"
    parts = ["## Results\n\n", results_table(results).markdown()]
    comparisons = distinct_comparisons(results)
    if comparisons:
        parts += ["\n## Selective against full tuning\n\n", comparisons_markdown(comparisons)]
    parts += [f"\n{line}\n" for line in results_conditions(results)]
    return "".join(parts)


def comparisons_markdown(comparisons: Sequence[Comparison]) -> str:
    """`comparison_table` with its conditions."""
    lines = conditions_lines([(each.model, each.conditions) for each in comparisons])
    return comparison_table(comparisons).markdown() + "".join(f"\n{line}\n" for line in lines)


def distinct_comparisons(results: Sequence[Result]) -> list[Comparison]:
    """The comparisons that results carry, each once, by model."""
    found = {result.model: result.comparison for result in results if result.comparison}
    return [found[model] for model in sorted(found)]


def benchmark_markdown(report: BenchmarkReport) -> str:
    """One result's latencies and kernels, with their conditions."""
    latencies = Table(
        ["variant", "median ms", "p10 ms", "p90 ms", "min ms", "rounds"],
        [
            [
                name,
                *map(number, (stats.median_ms, stats.p10_ms, stats.p90_ms, stats.min_ms)),
                str(stats.rounds),
            ]
            for name, stats in report.variants.items()
        ],
    )
    over_untuned, over_reference = report.speedup_over_untuned, report.speedup_over_onnxruntime
    return (
        f"## {report.model}, {report.strategy}\n\n{latencies.markdown()}\n"
        f"{over_untuned.median:.2f} times as fast as untuned "
        f"[{over_untuned.p10:.2f} - {over_untuned.p90:.2f}], "
        f"{over_reference.median:.2f} times as fast as onnxruntime "
        f"[{over_reference.p10:.2f} - {over_reference.p90:.2f}]; "
        f"largest relative error {report.max_relative_error:.1e}.\n\n"
        f"### Kernels\n\n{kernel_table(report).markdown()}\n"
        f"{_search_text(report)}"
        f"Measured on {conditions_text(report.conditions)}.\n"
    )


def _search_text(report: BenchmarkReport) -> str:
    """Failed candidates by cause, and what was done where the plan did not hold."""
    counts = ", ".join(f"{cause.replace('_', ' ')} {n}" for cause, n in report.failures.items())
    remarks = "".join(f"- {remark}\n" for remark in report.remarks)
    return f"Failed candidates: {counts or 'none'}.\n\n" + (f"{remarks}\n" if remarks else "")
