"""Tables of results, from the artifacts alone: equal artifacts give equal bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fewtune.artifacts import BenchmarkReport, Comparison, Conditions, LatencyStats, Metrics
from fewtune.util.table import MISSING, Table, number, percent


def target_name(target: str) -> str:
    """A TVM target as kind, processor and extensions, such as ``llvm rocketlake +avx512bf16``."""
    try:
        config = json.loads(target)
    except ValueError:
        return target
    if not isinstance(config, dict):
        return str(config)
    processor = config.get("mcpu") or config.get("arch")
    words = (config.get("kind"), processor, *config.get("mattr", ()))
    return " ".join(str(word) for word in words if word)


def conditions_text(conditions: Conditions) -> str:
    """Conditions in one line of text, without its end."""
    machine = conditions.fingerprint
    named = sorted({**machine.versions, **conditions.peers}.items())
    versions = ", ".join(f"{name} {version}" for name, version in named)
    code = f"fewtune {conditions.commit}, " if conditions.commit else ""
    copies = f" of {conditions.copies} copies" if conditions.copies > 1 else ""
    if conditions.processes > 1:
        copies += f" in {conditions.processes} processes"
    return (
        f"{machine.device}, target {target_name(machine.target)}, {machine.threads} threads; "
        f"{conditions.trials_per_task} trials a task, {conditions.rounds} rounds{copies}, "
        f"seed {conditions.seed}; {conditions.date}; {code}{versions}"
    )


def conditions_lines(labelled: Sequence[tuple[str, Conditions]]) -> list[str]:
    """One line for each set of conditions; labelled only if there are several.

    Parameters
    ----------
    labelled : sequence of (str, Conditions)
        What was measured, and its conditions.
    """
    groups: dict[str, list[str]] = {}
    for label, conditions in labelled:
        # Results of one session differ only in the second of their end.
        key = conditions.model_copy(update={"date": conditions.date[:10]})
        groups.setdefault(conditions_text(key), []).append(label)
    if len(groups) == 1:
        return [f"Measured on {text}." for text in groups]
    return [f"{', '.join(labels)}: measured on {text}." for text, labels in groups.items()]


_TUNED = "tuned"
# Columns of a result or of a comparison that fit into 80 letters.
NARROW = 7
# Per cent of the cores' time: a quiet host keeps less.
_VISIBLE_STOLEN_PCT = 1.0


@dataclass(frozen=True)
class Result:
    """One result: a model with a strategy.

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

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON has it, with units in the names."""
        report = self.benchmark
        tuned = report.variants.get(_TUNED)
        return {
            "model": self.model,
            "strategy": self.strategy,
            **self.metrics.figures(),
            "latency_p10_ms": tuned.p10_ms if tuned else None,
            "latency_p90_ms": tuned.p90_ms if tuned else None,
            "disturbed": report.disturbed or None,
            "comparison": self.comparison.headline() if self.comparison else None,
            "kernels": [row.model_dump(mode="json") for row in report.kernels],
            "remarks": report.remarks,
            "conditions": report.conditions.model_dump(mode="json"),
        }


def belongs(comparison: Comparison, selective: Result | None, full: Result | None) -> bool:
    """Whether a comparison was made of these results, and not of earlier ones.

    With equal figures of tuning, libraries may still differ: they may be compiled with other
    options.
    """
    if selective is None or full is None:
        return False
    tuning_s = (comparison.selective_tuning_s, comparison.full_tuning_s)
    return tuning_s == (selective.metrics.tuning_s, full.metrics.tuning_s) and all(
        # Older reports do not hold it.
        None in (measured := (comparison.library_sha256.get(name), each.benchmark.library_sha256))
        or measured[0] == measured[1]
        for name, each in (("selective", selective), ("full", full))
    )


def _of_tuned(text: Callable[[LatencyStats], str]) -> Callable[[Result], str]:
    """The text of a result's own latency, if it was measured."""

    def of(result: Result) -> str:
        stats = result.benchmark.variants.get(_TUNED)
        return MISSING if stats is None else text(stats)

    return of


def _of_comparison(name: str) -> Callable[[Result], str]:
    return lambda result: percent(getattr(result.comparison, name, None))


_RESULT_COLUMNS: dict[str, Callable[[Result], str]] = {
    "model": lambda each: each.model,
    "strategy": lambda each: each.strategy,
    "latency ms": lambda each: (
        number(each.metrics.latency_ms) + (", disturbed" if each.benchmark.disturbed else "")
    ),
    "± %": _of_tuned(lambda stats: f"{100 * stats.noise:.0f}"),
    "x over onnxruntime": lambda each: _ratio(each.metrics.speedup_over_onnxruntime),
    "x over OpenVINO": lambda each: _ratio(each.metrics.speedup_over_openvino),
    "tuning s": lambda each: number(each.metrics.tuning_s),
    "p10 - p90 ms": _of_tuned(lambda stats: f"{number(stats.p10_ms)} - {number(stats.p90_ms)}"),
    "untuned ms": lambda each: number(each.metrics.untuned_latency_ms),
    "onnxruntime ms": lambda each: number(each.metrics.onnxruntime_latency_ms),
    "OpenVINO ms": lambda each: number(each.metrics.openvino_latency_ms),
    "% of peak": lambda each: percent(each.metrics.peak_pct),
    "used time %": _of_comparison("used_time_pct"),
    "achieved %": _of_comparison("achieved_perf_pct"),
    "tuned/tasks": lambda each: f"{each.metrics.representatives}/{each.metrics.tasks}",
    "trials": lambda each: str(each.metrics.trials),
    "max rel. error": lambda each: f"{each.metrics.max_relative_error:.1e}",
}


def results_table(results: Sequence[Result], wide: bool = False) -> Table:
    """One row for each result, in 80 columns unless ``wide``; units stand in the headings."""
    table = Table.of(results, _RESULT_COLUMNS, frozenset({0, 1}))
    return table if wide else table.first(NARROW)


def disturbed_lines(results: Sequence[Result]) -> list[str]:
    """A line for each latency that was measured beside other work."""
    found = [(f"{each.model} {each.strategy}", each.benchmark.disturbed) for each in results]
    found += [(f"comparison of {it.model}", it.disturbed) for it in distinct_comparisons(results)]
    return [f"Disturbed: {what}: {why}." for what, why in found if why]


_COMPARISON_COLUMNS: dict[str, Callable[[Comparison], str]] = {
    "model": lambda each: each.model,
    "used time %": lambda each: percent(each.used_time_pct),
    "achieved perf %": lambda each: percent(each.achieved_perf_pct),
    "x over onnxruntime": lambda each: _ratio(each.speedup_over_onnxruntime),
    "x over OpenVINO": lambda each: _ratio(each.speedup_over_openvino),
    "full latency ms": lambda each: number(each.full_latency_ms),
    "selective latency ms": lambda each: number(each.selective_latency_ms),
    "full time s": lambda each: number(each.full_tuning_s),
    "selective time s": lambda each: number(each.selective_tuning_s),
    "onnxruntime ms": lambda each: number(each.onnxruntime_latency_ms),
    "OpenVINO ms": lambda each: number(each.openvino_latency_ms),
    "untuned ms": lambda each: number(each.untuned_latency_ms),
}
# Figures with means over the models, and which of them is the worst.
_MEANS: tuple[tuple[str, Callable[[float], str], Callable[[Sequence[float]], float]], ...] = (
    ("used_time_pct", percent, max),
    ("achieved_perf_pct", percent, min),
    ("speedup_over_onnxruntime", lambda value: _ratio(value), min),
    ("speedup_over_openvino", lambda value: _ratio(value), min),
)


def comparison_table(comparisons: Sequence[Comparison], wide: bool = True) -> Table:
    """Selective against full tuning: the table of TVM's RFC 4188, with onnxruntime added.

    It has 80 columns unless it is ``wide``. Means are over the models; the RFC gives the
    arithmetic mean, which large values pull up.
    """
    table = Table.of(comparisons, _COMPARISON_COLUMNS)
    if len(comparisons) > 1:
        means = []
        for name, text, worst in _MEANS:
            values = [getattr(each, name) for each in comparisons]
            # A mean of some models only could not be compared with the other columns' means.
            means.append([MISSING] * 3 if None in values else mean_texts(values, text, worst))
        rest = [MISSING] * (len(table.headings) - len(_MEANS) - 1)
        ends = [[*line, *rest] for line in zip(MEAN_LABELS, *means, strict=True)]
        table = replace(table, rows=[*table.rows, *ends])
    return table if wide else table.first(NARROW)


MEAN_LABELS = ("arithmetic mean", "geometric mean", "worst")


def mean_texts(
    values: Sequence[float],
    text: Callable[[float], str],
    worst: Callable[[Sequence[float]], float],
) -> list[str]:
    """Arithmetic mean, geometric mean and worst of ``values``, as `MEAN_LABELS` name them."""
    logs = [math.log(value) for value in values]
    arithmetic, geometric = sum(values) / len(values), math.exp(sum(logs) / len(logs))
    return [text(figure) for figure in (arithmetic, geometric, worst(values))]


def _ratio(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}"


def results_conditions(results: Sequence[Result]) -> list[str]:
    """`conditions_lines` of results."""
    return conditions_lines(
        [(f"{result.model} {result.strategy}", result.benchmark.conditions) for result in results]
    )


def results_markdown(results: Sequence[Result], wide: bool = False) -> str:
    """The results table, the comparison of strategies where it was made, and the conditions."""
    if not results:
        return "No results yet.\n"
    parts = ["## Results\n\n", results_table(results, wide).markdown()]
    comparisons = distinct_comparisons(results)
    if comparisons:
        parts += ["\n## Selective against full tuning\n\n", comparisons_markdown(comparisons)]
    parts += [f"\n{line}\n" for line in [*disturbed_lines(results), *results_conditions(results)]]
    return "".join(parts)


def comparisons_markdown(comparisons: Sequence[Comparison]) -> str:
    """`comparison_table` with its conditions."""
    lines = conditions_lines([(each.model, each.conditions) for each in comparisons])
    lines += stolen_lines(comparisons)
    return comparison_table(comparisons).markdown() + "".join(f"\n{line}\n" for line in lines)


def stolen_lines(comparisons: Sequence[Comparison]) -> list[str]:
    """The time that the machine's host kept from its cores: one line, if it was visible."""
    found = {
        each.model: [
            each.full_tuning_stolen_pct,
            each.selective_tuning_stolen_pct,
            each.measuring_stolen_pct,
        ]
        for each in comparisons
    }
    models = [
        f"{model} {' / '.join(map(percent, parts))}"
        for model, parts in found.items()
        if any(part is not None and part >= _VISIBLE_STOLEN_PCT for part in parts)
    ]
    if not models:
        return []
    return [
        "Per cent of the cores' time that the machine's host kept for others, in full tuning / "
        f"selective tuning / these measurements: {', '.join(models)}."
    ]


def distinct_comparisons(results: Sequence[Result]) -> list[Comparison]:
    """The distinct comparisons of results, by model."""
    found = {result.model: result.comparison for result in results if result.comparison}
    return [found[model] for model in sorted(found)]
