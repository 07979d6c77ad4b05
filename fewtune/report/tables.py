"""Tables of results, from the artifacts alone: equal artifacts give equal bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fewtune.artifacts import BenchmarkReport, Comparison, Conditions, Metrics
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


def results_table(results: Sequence[Result], wide: bool = False) -> Table:
    """One row for each result, in 80 columns unless ``wide``; units stand in the headings."""
    headings = [
        "model",
        "strategy",
        "latency ms",
        "± %",
        "x over onnxruntime",
        "x over OpenVINO",
        "tuning s",
        "p10 - p90 ms",
        "untuned ms",
        "onnxruntime ms",
        "OpenVINO ms",
        "% of peak",
        "used time %",
        "achieved %",
        "tuned/tasks",
        "trials",
        "max rel. error",
    ]
    rows = [_result_row(result) for result in results]
    table = Table(headings, rows, frozenset({0, 1}))
    return table if wide else table.first(NARROW)


def _result_row(result: Result) -> list[str]:
    metrics, stats = result.metrics, result.benchmark.variants.get(_TUNED)
    comparison = result.comparison
    return [
        result.model,
        result.strategy,
        number(metrics.latency_ms) + (", disturbed" if result.benchmark.disturbed else ""),
        MISSING if stats is None else f"{100 * stats.noise:.0f}",
        _ratio(metrics.speedup_over_onnxruntime),
        _ratio(metrics.speedup_over_openvino),
        number(metrics.tuning_s),
        MISSING if stats is None else f"{number(stats.p10_ms)} - {number(stats.p90_ms)}",
        number(metrics.untuned_latency_ms),
        number(metrics.onnxruntime_latency_ms),
        number(metrics.openvino_latency_ms),
        percent(metrics.peak_pct),
        percent(comparison.used_time_pct if comparison else None),
        percent(comparison.achieved_perf_pct if comparison else None),
        f"{metrics.representatives}/{metrics.tasks}",
        str(metrics.trials),
        f"{metrics.max_relative_error:.1e}",
    ]


def disturbed_lines(results: Sequence[Result]) -> list[str]:
    """A line for each latency that was measured beside other work."""
    found = [(f"{each.model} {each.strategy}", each.benchmark.disturbed) for each in results]
    found += [(f"comparison of {it.model}", it.disturbed) for it in distinct_comparisons(results)]
    return [f"Disturbed: {what}: {why}." for what, why in found if why]


def comparison_table(comparisons: Sequence[Comparison], wide: bool = True) -> Table:
    """Selective against full tuning: the table of TVM's RFC 4188, with onnxruntime added.

    It has 80 columns unless it is ``wide``. Means are over the models; the RFC gives the
    arithmetic mean, which large values pull up.
    """
    headings = [
        "model",
        "used time %",
        "achieved perf %",
        "x over onnxruntime",
        "x over OpenVINO",
        "full latency ms",
        "selective latency ms",
        "full time s",
        "selective time s",
        "onnxruntime ms",
        "OpenVINO ms",
        "untuned ms",
    ]
    rows = [
        [
            each.model,
            percent(each.used_time_pct),
            percent(each.achieved_perf_pct),
            _ratio(each.speedup_over_onnxruntime),
            _ratio(each.speedup_over_openvino),
            number(each.full_latency_ms),
            number(each.selective_latency_ms),
            number(each.full_tuning_s),
            number(each.selective_tuning_s),
            number(each.onnxruntime_latency_ms),
            number(each.openvino_latency_ms),
            number(each.untuned_latency_ms),
        ]
        for each in comparisons
    ]
    if len(comparisons) > 1:
        used = [each.used_time_pct for each in comparisons]
        achieved = [each.achieved_perf_pct for each in comparisons]
        known = [each.speedup_over_onnxruntime for each in comparisons]
        over = [ratio for ratio in known if ratio is not None]
        # A mean of some models only could not be compared with the other columns' means.
        over_means = mean_texts(over, _ratio, min) if len(over) == len(known) else [MISSING] * 3
        beside = [each.speedup_over_openvino for each in comparisons]
        peer_means = [MISSING] * 3
        if None not in beside:
            peer_means = mean_texts([ratio for ratio in beside if ratio is not None], _ratio, min)
        used_means = mean_texts(used, percent, max)
        achieved_means = mean_texts(achieved, percent, min)
        for place, label in enumerate(MEAN_LABELS):
            figures = [used_means[place], achieved_means[place], over_means[place]]
            rows.append([label, *figures, peer_means[place], *[MISSING] * 7])
    table = Table(headings, rows)
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
