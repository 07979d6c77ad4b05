"""The kernels of one result: their times, and how near they are to the machine's peak."""

from __future__ import annotations

import csv
import io
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from fewtune.artifacts import (
    CompileReport,
    ImportReport,
    KernelRow,
    PredictReport,
    Selection,
    SelectionTiming,
    SharedTask,
    ShareReport,
    TunedTask,
    TuneReport,
)
from fewtune.machine.peak import Peak
from fewtune.runtime.executable import CompiledModel, kernel_name
from fewtune.task.extract import Task, read_tasks

# By kernel of the lowered model: seconds of all its calls in one run, one sample for each round.
KernelSamples = dict[str, list[float]]

# A round is one unmeasured run, which brings the library's weights back into the cache, and the
# median of some measured runs. There are as many rounds as fit, within these bounds.
_RUNS = 3
_ROUNDS_S = 3.0
_LEAST_ROUNDS, _MOST_ROUNDS = 4, 24


def kernel_samples(copies: Sequence[CompiledModel]) -> KernelSamples:
    """Time the kernels of a library, whose copies take turns."""
    samples: KernelSamples = defaultdict(list)
    began_s = time.perf_counter()
    for copy in copies:
        copy.kernel_times_s()
    round_s = (1 + _RUNS) * (time.perf_counter() - began_s) / len(copies)
    rounds = max(_LEAST_ROUNDS, min(_MOST_ROUNDS, round(_ROUNDS_S / max(round_s, 1e-6))))
    for number in range(rounds):
        copy = copies[number % len(copies)]
        copy.kernel_times_s()
        taken = [_by_kernel(copy.kernel_times_s()) for _ in range(_RUNS)]
        for kernel in taken[0]:
            samples[kernel].append(statistics.median(each[kernel] for each in taken))
    return samples


def _by_kernel(times_s: Mapping[str, float]) -> dict[str, float]:
    """Times by the kernels' names before weights were laid out and parts computed in place."""
    found: dict[str, float] = defaultdict(float)
    for symbol, each_s in times_s.items():
        found[kernel_name(symbol)] += each_s
    return found


class StepResults(NamedTuple):
    """What the steps of one result wrote."""

    imported: ImportReport
    tasks: list[Task]
    predicted: PredictReport
    selection: Selection
    selecting_s: float
    tuned: TuneReport
    shared: ShareReport
    compiled: CompileReport

    @classmethod
    def read(cls, folders: Mapping[str, Path]) -> Self:
        """Read everything from the folders of the steps' outputs, by stage."""
        return cls(
            ImportReport.read(folders["import_model"]),
            read_tasks(folders["extract_tasks"]),
            PredictReport.read(folders["predict"]),
            Selection.read(folders["select_tasks"]),
            SelectionTiming.read(folders["select_tasks"]).selecting_s,
            TuneReport.read(folders["tune"]),
            ShareReport.read(folders["share_schedules"]),
            CompileReport.read(folders["compile"]),
        )

    @property
    def calls(self) -> dict[str, int]:
        """Calls of each task in one run of the library: none where all are computed in place."""
        in_place = self.compiled.in_place
        return {
            task.info.name: task.info.weight - in_place.get(task.info.name, 0)
            for task in self.tasks
        }

    @property
    def flops(self) -> float:
        """Operations of one run."""
        return sum(task.info.flops * task.info.weight for task in self.tasks)

    @property
    def byte_flops(self) -> float:
        """Those of them that are of products of bytes."""
        return sum(task.info.byte_flops * task.info.weight for task in self.tasks)


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
    shared, lines = result.shared, list[TunedTask | SharedTask](result.tuned.tasks)
    lines += [*shared.representatives, *shared.tasks]
    latencies_ms = {line.task: line.known_ms for line in lines if line.known_ms is not None}
    if samples_s:
        latencies_ms = _in_model_ms(result, samples_s)
    whole_ms = sum(each_ms * calls[name] for name, each_ms in latencies_ms.items())
    schedules, donors = _schedules(result), {line.task: line.donor for line in result.shared.tasks}
    rows = []
    for task in result.tasks:
        info = task.info
        if info.is_of_other_shape:
            continue
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
        # A predicted schedule may never have been measured.
        has_one = served.status != "default" or served.known_ms is not None
        found[served.task] = served.status if has_one or shared.prediction else "none"
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
