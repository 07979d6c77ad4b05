"""One result in detail: latencies, kernels and their part of the machine's peak, tuning time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from fewtune.artifacts import (
    BenchmarkReport,
    Comparison,
    KernelRow,
    LatencyStats,
    PredictReport,
    ShapeLatency,
    ShareReport,
    Spread,
    TuneReport,
    TuningStep,
)
from fewtune.report.tables import comparisons_markdown, conditions_text
from fewtune.trial.outcome import WRONG_OUTPUT
from fewtune.util.table import MISSING, Table, number, percent

if TYPE_CHECKING:
    from fewtune.task.extract import Task

PHASES = {
    "search_s": "searching s",
    "build_s": "building s",
    "run_s": "measuring s",
    "check_s": "checking s",
}
_SEARCHED, _SELECTING, _PREDICTING = "search of the selected", "selecting", "predicting"
_RULES = {
    _PREDICTING: "each task takes the schedule that is rated best, or the bank's where that holds "
    "this very task; it is built, and its outputs are compared",
    _SELECTING: "design spaces are compared, and similar tasks clustered",
    _SEARCHED: "batches where the model gains most, until the next one promises less than "
    "tune.least_gain or the trials are spent; before them default schedules are measured",
}


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
        TuningStep(
            name=name, rule=_RULES[name], tasks=count, trials=0, spent_s=spent_s, search_s=spent_s
        )
        for name, count, spent_s in (
            (_PREDICTING, len(predicted.tasks), predicted.predicting_s),
            (_SELECTING, len(calls), selecting_s),
        )
    ]
    searched = TuningStep(
        name=_SEARCHED,
        rule=_RULES[_SEARCHED],
        tasks=len(tuned.tasks),
        trials=tuned.trials,
        spent_s=tuned.tuning_s,
        gained_ms=sum(gains_ms) if gains_ms else None,
        model_update_s=tuned.model_update_s,
        **{phase: getattr(tuned, phase) for phase in PHASES},
    )
    return [step for step in (*first, searched, *shared.rounds) if step.spent_s]


def _phase_text(name: str, step: TuningStep) -> str:
    return number(getattr(step, name))


_STEP_COLUMNS: dict[str, Callable[[TuningStep], str]] = {
    "step": lambda step: step.name,
    "tasks": lambda step: str(step.tasks),
    "trials": lambda step: str(step.trials or MISSING),
    "spent s": lambda step: number(step.spent_s),
    **{text: partial(_phase_text, name) for name, text in PHASES.items()},
    "gained ms": lambda step: MISSING if step.gained_ms is None else f"{step.gained_ms:.3f}",
}


def steps_table(steps: Sequence[TuningStep]) -> Table:
    """One row for each step; its time beyond the named phases went to learning and waiting."""
    return Table.of(steps, _STEP_COLUMNS)


def steps_markdown(steps: Sequence[TuningStep]) -> str:
    """The table with each step's rule; empty if no step is known."""
    if not steps:
        return ""
    rules = "".join(f"- {step.name}: {step.rule}.\n" for step in steps)
    return f"### What tuning time went to\n\n{steps_table(steps).markdown()}\n{rules}\n"


# Rows of a table of losses; tasks on which nothing was lost are in none.
_MOST_LOSSES = 8


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


def loss_table(comparison: Comparison, selective: BenchmarkReport) -> Table:
    """The few tasks on which selective tuning lost most, by the loss of the whole model.

    Parameters
    ----------
    comparison : Comparison
        Its kernels were timed where the model calls them, both libraries in turns.
    selective : BenchmarkReport
        Of the same model; it says where the tasks' schedules come from.
    """
    known = {row.task: row for row in selective.kernels}
    headings = [
        "task", "calls", "selective ms", "full ms", "lost ms [p10 - p90]", "selective GFLOPS",
        "full GFLOPS", "schedule", "donor",
    ]  # fmt: skip
    rows = []
    for pair in [pair for pair in comparison.kernels if pair.lost_ms > 0][:_MOST_LOSSES]:
        row = known[pair.task]
        mega_operations = (row.gflops or 0.0) * (row.latency_ms or 0.0)
        rows.append(
            [
                pair.task,
                str(pair.calls),
                number(pair.selective_ms),
                number(pair.full_ms),
                f"{pair.lost_ms:.3f} [{pair.lost_p10_ms:.3f} - {pair.lost_p90_ms:.3f}]",
                number(mega_operations / pair.selective_ms if mega_operations else None),
                number(mega_operations / pair.full_ms if mega_operations else None),
                row.schedule,
                row.donor or MISSING,
            ]
        )
    return Table(headings, rows, frozenset({0, 7, 8}))


def comparison_markdown(comparison: Comparison, selective: BenchmarkReport) -> str:
    """Selective against full tuning of one model, and the tasks that make the difference."""
    text = comparisons_markdown([comparison])
    if comparison.disturbed:
        text += f"\n{_disturbed_text(comparison.disturbed)}"
    losses = loss_table(comparison, selective)
    if not losses.rows:
        return text
    lost = [pair.lost_ms for pair in comparison.kernels if pair.lost_ms > 0]
    gained = [-pair.lost_ms for pair in comparison.kernels if pair.lost_ms < 0]
    return (
        f"{text}\n### What selective tuning lost\n\nEvery kernel where the model calls it, both "
        f"libraries in turns in {comparison.conditions.processes} processes; what is lost is of "
        f"all calls of one run.\n\n{losses.markdown()}\n"
        f"In sum {number(sum(lost))} ms a run are lost (tasks: {len(lost)}) and "
        f"{number(sum(gained))} gained (tasks: {len(gained)}).\n"
    )


def benchmark_markdown(report: BenchmarkReport) -> str:
    """One result's latencies and kernels, with their conditions."""
    latencies = latency_table(report.variants.items())
    over_untuned = report.speedup_over_untuned
    return (
        f"## {report.model}, {report.strategy}\n\n{latencies.markdown()}\n"
        f"{_disturbed_text(report.disturbed)}"
        f"{over_untuned.median:.2f} times as fast as untuned "
        f"[{over_untuned.p10:.2f} - {over_untuned.p90:.2f}]"
        f"{_over('onnxruntime', report.speedup_over_onnxruntime)}"
        f"{_over('OpenVINO', report.speedup_over_openvino)}; "
        f"largest relative error {report.max_relative_error:.1e}.\n\n"
        f"{_shapes_text(report)}{_peak_text(report)}{steps_markdown(report.steps)}"
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


def _shapes_text(report: BenchmarkReport) -> str:
    return f"{shapes_table(report.shapes).markdown()}\n" if report.shapes else ""


def _over(peer: str, over: Spread | None) -> str:
    if over is None:
        return ""
    return f", {over.median:.2f} times as fast as {peer} [{over.p10:.2f} - {over.p90:.2f}]"


def _peak_text(report: BenchmarkReport) -> str:
    """How near the model is to the machine's peak, and where the rest of its time goes."""
    lines = []
    if report.model_gflops is not None:
        line = f"The whole model runs at {number(report.model_gflops)} GFLOPS"
        if report.peak_gflops is not None:
            line += (
                f", {percent(report.peak_pct)} % of the machine's measured peak of "
                f"{number(report.peak_gflops)}"
            )
        lines.append(f"{line}.")
    if report.plain_gflops is not None:
        lines.append(
            "With every convolution counted as its plain sum, not as what Winograd's transforms "
            f"leave of it or padding adds, that is {number(report.plain_gflops)} GFLOPS."
        )
    if report.memory_gb_s is not None:
        lines.append(
            f"Memory moves {number(report.memory_gb_s)} GB/s at most (STREAM triad); what fits "
            "into the caches, or is only read, may move faster."
        )
    if report.kernels_ms and report.outside_tuned_pct is not None:
        lines.append(
            f"Kernels take {number(report.kernels_ms)} ms of the "
            f"{number(report.variants['tuned'].median_ms)} ms, of which "
            f"{percent(report.outside_tuned_pct)} % lie outside tuned tasks."
        )
    return "".join(f"{line}\n" for line in lines) + ("\n" if lines else "")


def _search_text(report: BenchmarkReport) -> str:
    """Failed candidates by cause, and deviations from the plan."""
    counts = ", ".join(f"{cause.replace('_', ' ')} {n}" for cause, n in report.failures.items())
    if WRONG_OUTPUT in report.failures:
        counts += " (their traces: `wrong_schedules.json` of tuning and of sharing)"
    remarks = "".join(f"- {remark}\n" for remark in report.remarks)
    return f"Failed candidates: {counts or 'none'}.\n\n" + (f"{remarks}\n" if remarks else "")
