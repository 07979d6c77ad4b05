"""Tables of results, from the artifacts alone: equal artifacts give equal bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fewtune.artifacts import (
    BenchmarkReport,
    Comparison,
    Conditions,
    KernelRow,
    LatencyStats,
    Metrics,
    PredictReport,
    ShapeLatency,
    ShareReport,
    Spread,
    TuneReport,
    TuningStep,
)
from fewtune.trial.outcome import WRONG_OUTPUT
from fewtune.util.table import MISSING, Table, number, percent


def target_name(target: str) -> str:
    """A TVM target as kind, processor and extensions, such as ``llvm rocketlake +avx512bf16``."""
    config = json.loads(target)
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


# Columns of a result or of a comparison that fit into 80 letters.
NARROW = 7


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

    @property
    def tuned(self) -> LatencyStats:
        """The latency of its library."""
        return self.benchmark.variants["tuned"]

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON has it, with units in the names."""
        report = self.benchmark
        return {
            "model": self.model,
            "strategy": self.strategy,
            **self.metrics.figures(),
            "latency_p10_ms": self.tuned.p10_ms,
            "latency_p90_ms": self.tuned.p90_ms,
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
    measured = [comparison.library_sha256.get(name) for name in ("selective", "full")]
    return tuning_s == (selective.metrics.tuning_s, full.metrics.tuning_s) and measured == [
        each.benchmark.library_sha256 for each in (selective, full)
    ]


def _of_comparison(name: str) -> Callable[[Result], str]:
    return lambda result: percent(getattr(result.comparison, name, None))


_RESULT_COLUMNS: dict[str, Callable[[Result], str]] = {
    "model": lambda each: each.model,
    "strategy": lambda each: each.strategy,
    "latency ms": lambda each: (
        number(each.metrics.latency_ms) + (", disturbed" if each.benchmark.disturbed else "")
    ),
    "± %": lambda each: f"{100 * each.tuned.noise:.0f}",
    "x over onnxruntime": lambda each: _ratio(each.metrics.speedup_over_onnxruntime),
    "x over OpenVINO": lambda each: _ratio(each.metrics.speedup_over_openvino),
    "tuning s": lambda each: number(each.metrics.tuning_s),
    "p10 - p90 ms": lambda each: f"{number(each.tuned.p10_ms)} - {number(each.tuned.p90_ms)}",
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


# A quiet host keeps less.
_VISIBLE_STOLEN_PCT = 1.0


def disturbed_lines(results: Sequence[Result]) -> list[str]:
    """A line for each latency, or tuning, that was measured beside other work."""
    found = [(f"{each.model} {each.strategy}", each.benchmark.disturbed) for each in results]
    found += [(f"comparison of {it.model}", it.disturbed) for it in distinct_comparisons(results)]
    for each in results:
        if (stolen_pct := each.metrics.tuning_stolen_pct or 0.0) >= _VISIBLE_STOLEN_PCT:
            why = f"the machine's host kept {percent(stolen_pct)} % of the cores' time"
            found.append((f"tuning of {each.model} {each.strategy}", why))
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
    return comparison_table(comparisons).markdown() + "".join(f"\n{line}\n" for line in lines)


def distinct_comparisons(results: Sequence[Result]) -> list[Comparison]:
    """The distinct comparisons of results, by model."""
    found = {result.model: result.comparison for result in results if result.comparison}
    return [found[model] for model in sorted(found)]


if TYPE_CHECKING:
    from fewtune.task.extract import Task

_PHASES = ("search_s", "build_s", "run_s", "check_s")
_SEARCHED, _SELECTING, _PREDICTING = "search of the selected", "selecting", "predicting"


def tuning_steps(
    tasks: list[Task],
    predicted: PredictReport,
    selecting_s: float,
    tuned: TuneReport,
    shared: ShareReport,
) -> list[TuningStep]:
    """Every step of tuning, in order; those that did nothing are left out.

    Parameters
    ----------
    tasks : list of Task
        All tasks of the model.
    predicted : PredictReport
    selecting_s : float
    tuned : TuneReport
    shared : ShareReport
    """
    calls = {task.info.name: task.info.weight for task in tasks}
    gains_ms = [
        calls[line.task] * (line.default_ms - line.best_ms)
        for line in tuned.tasks
        if line.default_ms is not None and line.best_ms is not None
    ]
    first = [
        TuningStep(name=name, tasks=count, trials=0, spent_s=spent_s, search_s=spent_s)
        for name, count, spent_s in (
            (_PREDICTING, len(predicted.tasks), predicted.predicting_s),
            (_SELECTING, len(calls), selecting_s),
        )
    ]
    searched = TuningStep(
        name=_SEARCHED,
        tasks=len(tuned.tasks),
        trials=tuned.trials,
        spent_s=tuned.tuning_s,
        gained_ms=sum(gains_ms) if gains_ms else None,
        model_update_s=tuned.model_update_s,
        **{phase: getattr(tuned, phase) for phase in _PHASES},
    )
    return [step for step in (*first, searched, *shared.rounds) if step.spent_s]


_STEP_COLUMNS: dict[str, Callable[[TuningStep], str]] = {
    "step": lambda step: step.name,
    "tasks": lambda step: str(step.tasks),
    "trials": lambda step: str(step.trials or MISSING),
    "spent s": lambda step: number(step.spent_s),
    "searching s": lambda step: number(step.search_s),
    "building s": lambda step: number(step.build_s),
    "measuring s": lambda step: number(step.run_s),
    "checking s": lambda step: number(step.check_s),
    "gained ms": lambda step: MISSING if step.gained_ms is None else f"{step.gained_ms:.3f}",
}


def steps_table(steps: Sequence[TuningStep]) -> Table:
    """One row for each step; its time beyond the named phases went to learning and waiting."""
    return Table.of(steps, _STEP_COLUMNS)


def steps_markdown(steps: Sequence[TuningStep]) -> str:
    """The table under its heading; empty if no step is known."""
    return f"### What tuning time went to\n\n{steps_table(steps).markdown()}\n" if steps else ""


_KERNEL_COLUMNS: dict[str, Callable[[KernelRow], str]] = {
    "task": lambda row: row.task,
    "calls": lambda row: str(row.weight),
    "latency ms": lambda row: number(row.latency_ms),
    "share %": lambda row: percent(None if row.share is None else 100 * row.share),
    "GFLOPS": lambda row: number(row.gflops),
    "% of peak": lambda row: percent(row.peak_pct),
    "GB/s": lambda row: number(row.gb_s),
    "schedule": lambda row: row.schedule,
    "donor": lambda row: row.donor or MISSING,
}


def kernel_table(report: BenchmarkReport) -> Table:
    """The model's kernels, the one that takes most time first."""
    rows = sorted(report.kernels, key=KernelRow.order)
    return Table.of(rows, _KERNEL_COLUMNS, frozenset({0, 7, 8}))


_LATENCY_COLUMNS: dict[str, Callable[[tuple[str, LatencyStats]], str]] = {
    "variant": lambda each: each[0],
    "median ms": lambda each: number(each[1].median_ms),
    "p10 ms": lambda each: number(each[1].p10_ms),
    "p90 ms": lambda each: number(each[1].p90_ms),
    "min ms": lambda each: number(each[1].min_ms),
    "rounds": lambda each: str(each[1].rounds),
}


def latency_table(variants: Iterable[tuple[str, LatencyStats]]) -> Table:
    """The latency of each variant."""
    return Table.of(variants, _LATENCY_COLUMNS)


def comparison_markdown(comparison: Comparison) -> str:
    """Selective against full tuning of one model."""
    return f"{comparisons_markdown([comparison])}\n{_disturbed_text(comparison.disturbed)}"


def benchmark_markdown(report: BenchmarkReport) -> str:
    """One result's latencies and kernels, with their conditions."""
    latencies = latency_table(report.variants.items())
    over_untuned = report.speedup_over_untuned
    shapes = f"{shapes_table(report.shapes).markdown()}\n" if report.shapes else ""
    return (
        f"## {report.model}, {report.strategy}\n\n{latencies.markdown()}\n"
        f"{_disturbed_text(report.disturbed)}"
        f"{over_untuned.median:.2f} times as fast as untuned "
        f"[{over_untuned.p10:.2f} - {over_untuned.p90:.2f}]"
        f"{_over('onnxruntime', report.speedup_over_onnxruntime)}"
        f"{_over('OpenVINO', report.speedup_over_openvino)}; "
        f"largest relative error {report.max_relative_error:.1e}.\n\n"
        f"{shapes}{_peak_text(report)}{steps_markdown(report.steps)}"
        f"### Kernels\n\n{kernel_table(report).markdown()}\n"
        f"{_search_text(report)}"
        f"Measured on {conditions_text(report.conditions)}.\n"
    )


def _disturbed_text(disturbed: str) -> str:
    return f"**Disturbed**: {disturbed}.\n\n" if disturbed else ""


def shapes_table(shapes: Sequence[ShapeLatency]) -> Table:
    """Latency by shape beside the peers', for a library of several."""
    peers = [name for name in shapes[0].variants if name not in ("tuned", "untuned")]
    rows = []
    for each in shapes:
        over = each.speedup_over_onnxruntime
        medians = [each.variants.get(name) for name in ["tuned", *peers]]
        rows.append(
            [
                each.shapes,
                *(number(None if stats is None else stats.median_ms) for stats in medians),
                MISSING if over is None else f"{over.median:.2f} [{over.p10:.2f} - {over.p90:.2f}]",
            ]
        )
    heads = ["shape", "tuned ms", *(f"{name} ms" for name in peers), "x over onnxruntime"]
    return Table(heads, rows)


def _over(peer: str, over: Spread | None) -> str:
    if over is None:
        return ""
    return f", {over.median:.2f} times as fast as {peer} [{over.p10:.2f} - {over.p90:.2f}]"


def _peak_text(report: BenchmarkReport) -> str:
    """How near the model is to the machine's peak, and where the rest of its time goes."""
    text = f"The whole model runs at {number(report.model_gflops)} GFLOPS"
    if report.peak_gflops is not None:
        text += (
            f", {percent(report.peak_pct)} % of the machine's measured peak of "
            f"{number(report.peak_gflops)}"
        )
    text += ".\n"
    if report.kernels_ms:
        text += (
            f"Kernels take {number(report.kernels_ms)} ms of the "
            f"{number(report.variants['tuned'].median_ms)} ms, of which "
            f"{percent(report.outside_tuned_pct)} % lie outside tuned tasks.\n"
        )
    return f"{text}\n"


def _search_text(report: BenchmarkReport) -> str:
    """Failed candidates by cause, and deviations from the plan."""
    counts = ", ".join(f"{cause.replace('_', ' ')} {n}" for cause, n in report.failures.items())
    if WRONG_OUTPUT in report.failures:
        counts += " (their traces: `wrong_schedules.json` of tuning and of sharing)"
    remarks = "".join(f"- {remark}\n" for remark in report.remarks)
    return f"Failed candidates: {counts or 'none'}.\n\n" + (f"{remarks}\n" if remarks else "")
