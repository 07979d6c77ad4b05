"""The kernels of one result: their times, and how near they are to the machine's peak."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

from fewtune.artifacts import KernelRow, Selection, ShareReport, TaskInfo, TuneReport
from fewtune.machine.peak import Peak
from fewtune.task.extract import Task


def kernel_rows(
    tasks: list[Task],
    selection: Selection,
    tuned: TuneReport,
    shared: ShareReport,
    in_place: dict[str, int],
    defaults_ms: Mapping[str, float],
    peak: Peak | None,
) -> list[KernelRow]:
    """List every task with its measured latency.

    A concatenation that is computed in place is never called, and not measured.

    Parameters
    ----------
    tasks : list of Task
    selection : Selection
    tuned : TuneReport
    shared : ShareReport
    in_place : dict of int
        Number of calls that the library leaves out, by task.
    defaults_ms : mapping of float
        Milliseconds of the tasks that were set aside, as far as they could be measured.
    peak : Peak or None
        The machine's peak, if it was measured.
    """
    latency_ms: dict[str, float | None] = {}
    schedules: dict[str, str] = {}
    donors: dict[str, str | None] = {}
    for line in [*tuned.tasks, *shared.representatives]:
        latency_ms[line.task] = line.known_ms
        won = line.best_ms is not None and line.best_ms != line.default_ms
        schedules[line.task] = "tuned" if won else "default"
    for served in shared.tasks:
        latency_ms[served.task] = served.known_ms
        is_known = served.known_ms is not None or shared.prediction is not None
        schedules[served.task] = served.status if is_known else "none"
        donors[served.task] = served.donor
    calls = {t.info.name: t.info.weight - in_place.get(t.info.name, 0) for t in tasks}
    schedules.update((name, "in place") for name, left in calls.items() if not left)
    for name in selection.set_aside:
        if calls[name]:
            latency_ms[name] = defaults_ms.get(name)
            schedules[name] = "default" if name in defaults_ms else "none"
    # If schedules were predicted, some kernels' times alone are not known.
    known = {} if shared.prediction is not None else calls
    whole_ms = sum((latency_ms.get(name) or 0.0) * count for name, count in known.items())
    rows = []
    for task in tasks:
        name, call_ms = task.info.name, latency_ms.get(task.info.name)
        row = _row(task.info, call_ms, schedules.get(name, "none"), donors.get(name), peak)
        share = call_ms * calls[name] / whole_ms if call_ms and whole_ms else None
        rows.append(row.model_copy(update={"share": share, "weight": calls[name]}))
    return rows


def _row(
    info: TaskInfo, call_ms: float | None, schedule: Any, donor: str | None, peak: Peak | None
) -> KernelRow:
    """A kernel's figures without its share of the whole."""
    row = KernelRow(
        task=info.name,
        shapes=info.shapes_text,
        weight=info.weight,
        latency_ms=call_ms,
        share=None,
        gflops=info.flops / call_ms / 1e6 if call_ms else None,
        gb_s=info.bytes / call_ms / 1e6 if call_ms else None,
        schedule=schedule,
        donor=donor,
    )
    if peak is None or not call_ms or not row.is_searched:
        return row
    least_ms = peak.least_ms(info.flops, info.byte_flops)
    return row.model_copy(update={"peak_pct": 100 * least_ms / call_ms})


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
