"""The kernels of one result: their times, and how near they are to the machine's peak."""

from __future__ import annotations

import csv
import io
import statistics
from collections import defaultdict
from typing import Any

from fewtune.artifacts import KernelRow, SharedTask, TunedTask
from fewtune.benchmark.interleaved_kernels import KernelSamples
from fewtune.benchmark.result import StepResults
from fewtune.machine.peak import Peak


def kernel_rows(
    result: StepResults, samples_s: KernelSamples, peak: Peak | None
) -> list[KernelRow]:
    """List every task with its latency, and how near that is to the machine's peak.

    Parameters
    ----------
    result : StepResults
    samples_s : KernelSamples
        Of the library's kernels where the model calls them; without any, as on a board, latencies
        are those of tuning and sharing.
    peak : Peak or None
        The machine's peak, if it was measured.
    """
    calls = result.calls
    latencies_ms = _in_model_ms(result, samples_s) if samples_s else _alone_ms(result)
    whole_ms = sum(each_ms * calls[name] for name, each_ms in latencies_ms.items())
    schedules, donors = _schedules(result), {line.task: line.donor for line in result.shared.tasks}
    rows = []
    for task in result.tasks:
        info = task.info
        call_ms = latencies_ms.get(info.name) if calls[info.name] else None
        row = KernelRow(
            task=info.name,
            shapes=info.shapes_text,
            weight=calls[info.name],
            latency_ms=call_ms,
            share=call_ms * calls[info.name] / whole_ms if call_ms else None,
            gflops=info.flops / call_ms / 1e6 if call_ms else None,
            gb_s=info.bytes / call_ms / 1e6 if call_ms else None,
            schedule=schedules.get(info.name, "none"),
            donor=donors.get(info.name),
        )
        if peak is not None and call_ms and row.is_searched:
            least_ms = peak.least_ms(info.flops, info.byte_flops)
            row = row.model_copy(update={"peak_pct": 100 * least_ms / call_ms})
        rows.append(row)
    return rows


def _in_model_ms(result: StepResults, samples_s: KernelSamples) -> dict[str, float]:
    """Milliseconds of one call by task."""
    whole_ms: dict[str, float] = defaultdict(float)
    for kernel, taken_s in samples_s.items():
        name = result.compiled.other_names.get(kernel, kernel)
        whole_ms[name] += 1e3 * statistics.median(taken_s)
    return {name: whole_ms[name] / count for name, count in result.calls.items() if whole_ms[name]}


def _alone_ms(result: StepResults) -> dict[str, float]:
    tuned, shared = result.tuned, result.shared
    lines: list[TunedTask | SharedTask] = [*tuned.tasks, *shared.representatives, *shared.tasks]
    return {line.task: line.known_ms for line in lines if line.known_ms is not None}


def _schedules(result: StepResults) -> dict[str, Any]:
    """Where each task's schedule comes from."""
    unscheduled, shared = set(result.compiled.unscheduled), result.shared
    found: dict[str, Any] = {
        name: "none" if name in unscheduled else "default" for name in result.selection.set_aside
    }
    for line in [*result.tuned.tasks, *shared.representatives]:
        won = line.best_ms is not None and line.best_ms != line.default_ms
        found[line.task] = "tuned" if won else "default"
    for served in shared.tasks:
        is_known = served.known_ms is not None or shared.prediction is not None
        found[served.task] = served.status if is_known else "none"
    return found | {name: "in place" for name, count in result.calls.items() if not count}


def kernels_csv(rows: list[KernelRow]) -> str:
    """The rows as CSV, the kernel that takes most time first."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    figures = ("latency_ms", "share", "gflops", "gb_s", "peak_pct")
    writer.writerow(["task", "weight", *figures, "schedule", "donor"])
    for row in sorted(rows, key=KernelRow.order):
        values = [getattr(row, name) for name in figures]
        texts = ["" if value is None else f"{value:.6g}" for value in values]
        writer.writerow([row.task, row.weight, *texts, row.schedule, row.donor or ""])
    return stream.getvalue()
