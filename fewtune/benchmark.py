"""End-to-end latency of untuned TVM, tuned TVM and onnxruntime, side by side."""

from __future__ import annotations

import csv
import datetime
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fewtune import interleave, report
from fewtune.artifacts import (
    BenchmarkReport,
    CompileReport,
    Conditions,
    Fingerprint,
    ImportReport,
    KernelRow,
    Metrics,
    Selection,
    ShareReport,
    TuneReport,
    failures_by_cause,
)
from fewtune.executable import CompiledModel, build_executable
from fewtune.files import write_text
from fewtune.machine import target_from_json
from fewtune.model import reference
from fewtune.model.relax_import import REFERENCE, read_lowered
from fewtune.schedule.default import default_schedule
from fewtune.task.extract import Task
from fewtune.tuning.measure import Measurer, module_specs
from fewtune.tuning.pool import WorkerPool
from fewtune.tvm_runtime import set_threads


class BenchmarkOptions(BaseModel):
    """How long a model is measured."""

    model_config = ConfigDict(extra="forbid")

    rounds: int = Field(default=30, ge=3, le=10_000, description="rounds of all variants in turn")
    seed: int = Field(default=0, ge=0, lt=2**31, description="seed of the random inputs")


class Variants:
    """The variants of one model, ready to run on the same inputs and threads.

    Parameters
    ----------
    import_directory : Path
    libraries : dict of Path
        Exported libraries by variant name.
    fingerprint : Fingerprint
    seed : int
    """

    def __init__(
        self,
        import_directory: Path,
        libraries: dict[str, Path],
        fingerprint: Fingerprint,
        seed: int,
    ) -> None:
        set_threads(fingerprint.threads)
        target = target_from_json(fingerprint.target)
        inputs = ImportReport.read(import_directory).inputs
        feeds = reference.random_inputs(inputs, seed)
        self._ordered = [feeds[spec.name] for spec in inputs]
        untuned = build_executable(read_lowered(import_directory), target)
        self._compiled = {"untuned": CompiledModel(untuned, target)}
        for name, library in libraries.items():
            self._compiled[name] = CompiledModel(library, target)
        session = reference.OnnxruntimeSession(import_directory / REFERENCE, fingerprint.threads)
        self.runs: dict[str, Callable[[], object]] = {}
        for name, compiled in self._compiled.items():
            compiled.set_inputs(self._ordered)
            self.runs[name] = compiled.run
        self.runs["onnxruntime"] = lambda: session.run(feeds)
        self._expected = session.run(feeds)

    def measured(self, rounds: int) -> dict[str, list[float]]:
        """Seconds of one call of every variant, in turns; untuned is there for scale."""
        return interleave.interleave(self.runs, rounds, for_scale=frozenset({"untuned"}))

    def relative_error(self, name: str) -> float:
        """Largest relative error of a variant against onnxruntime on the measured inputs."""
        actual: list[np.ndarray] = [output.numpy() for output in self._compiled[name].run()]
        return reference.relative_error(actual, self._expected)


def benchmark_model(
    import_directory: Path,
    tasks: list[Task],
    selection: Selection,
    selecting_s: float,
    tuned: TuneReport,
    shared: ShareReport,
    compile_directory: Path,
    fingerprint: Fingerprint,
    options: BenchmarkOptions,
    directory: Path,
) -> BenchmarkReport:
    """Measure one result and write its report, metrics and kernel table into ``directory``.

    Parameters
    ----------
    import_directory : Path
    tasks : list of Task
    selection : Selection
    selecting_s : float
        Seconds that selecting took, a part of the tuning time.
    tuned : TuneReport
    shared : ShareReport
    compile_directory : Path
    fingerprint : Fingerprint
    options : BenchmarkOptions
    directory : Path
    """
    compiled = CompileReport.read(compile_directory)
    variants = Variants(
        import_directory, {"tuned": compile_directory / compiled.library}, fingerprint, options.seed
    )
    error = variants.relative_error("tuned")
    samples = variants.measured(options.rounds)
    del variants
    rows = _kernel_rows(tasks, selection, tuned, shared, fingerprint)
    searched = [row.share for row in rows if row.schedule not in ("default", "none")]
    stats = {name: interleave.latency_stats(taken) for name, taken in samples.items()}
    result = BenchmarkReport(
        model=selection.model,
        strategy=selection.strategy,
        variants=stats,
        speedup_over_untuned=interleave.ratio_stats(samples["untuned"], samples["tuned"]),
        speedup_over_onnxruntime=interleave.ratio_stats(samples["onnxruntime"], samples["tuned"]),
        max_relative_error=max(error, compiled.max_relative_error),
        kernels=rows,
        tuned_share=sum(share for share in searched if share is not None),
        failures=failures_by_cause([*tuned.tasks, *shared.tasks]),
        remarks=_remarks(tuned, shared),
        conditions=conditions_of(fingerprint, options, tuned.trials_per_task),
    )
    metrics = Metrics(
        latency_ms=stats["tuned"].median_ms,
        untuned_latency_ms=stats["untuned"].median_ms,
        onnxruntime_latency_ms=stats["onnxruntime"].median_ms,
        speedup_over_untuned=result.speedup_over_untuned.median,
        speedup_over_onnxruntime=result.speedup_over_onnxruntime.median,
        tuning_s=round(selecting_s + tuned.tuning_s + shared.sharing_s, 3),
        selecting_s=selecting_s,
        representative_tuning_s=tuned.tuning_s,
        sharing_s=shared.sharing_s,
        compile_s=compiled.compile_s,
        tasks=len(tasks),
        representatives=len(selection.representatives),
        dependents=len(shared.tasks),
        set_aside=len(selection.set_aside),
        trials=tuned.trials + shared.trials,
        max_relative_error=result.max_relative_error,
    )
    result.write(directory)
    metrics.write(directory)
    write_text(directory / "kernels.csv", _kernels_csv(rows))
    write_text(directory / "report.md", report.benchmark_markdown(result))
    return result


def _remarks(tuned: TuneReport, shared: ShareReport) -> list[str]:
    """Tasks without a schedule of their own, or with one from elsewhere than planned."""
    said = [
        f"{line.task}: {line.status.replace('_', ' ')} {f'({line.note})' if line.note else ''}"
        for line in tuned.tasks
        if line.status != "tuned"
    ]
    said += [f"{line.task}: {line.note}" for line in shared.tasks if line.note]
    return [text.strip() for text in said]


def conditions_of(
    fingerprint: Fingerprint, options: BenchmarkOptions, trials_per_task: int
) -> Conditions:
    """Under which figures measured now hold."""
    now = datetime.datetime.now(datetime.UTC)
    return Conditions(
        fingerprint=fingerprint,
        date=now.strftime("%Y-%m-%dT%H:%MZ"),
        trials_per_task=trials_per_task,
        rounds=options.rounds,
        seed=options.seed,
    )


def _kernel_rows(
    tasks: list[Task],
    selection: Selection,
    tuned: TuneReport,
    shared: ShareReport,
    fingerprint: Fingerprint,
) -> list[KernelRow]:
    """Every task with its measured latency; those set aside are measured here."""
    latency_ms: dict[str, float | None] = {}
    schedules: dict[str, str] = {}
    donors: dict[str, str | None] = {}
    for line in tuned.tasks:
        known = [ms for ms in (line.best_ms, line.default_ms) if ms is not None]
        latency_ms[line.task] = min(known, default=None)
        won = line.best_ms is not None and line.best_ms == min(known) != line.default_ms
        schedules[line.task] = "tuned" if won else "default"
    for line in shared.tasks:
        known = [ms for ms in (line.best_ms, line.default_ms) if ms is not None]
        latency_ms[line.task] = min(known, default=None)
        schedules[line.task] = line.status
        donors[line.task] = line.donor
    aside = [task for task in tasks if task.info.name in set(selection.set_aside)]
    for name, measured_ms in _measure_defaults(aside, fingerprint).items():
        latency_ms[name] = measured_ms
        schedules[name] = "default" if measured_ms is not None else "none"
    whole_ms = sum((latency_ms.get(t.info.name) or 0.0) * t.info.weight for t in tasks)
    rows = []
    for task in tasks:
        name, call_ms = task.info.name, latency_ms.get(task.info.name)
        rows.append(
            KernelRow(
                task=name,
                weight=task.info.weight,
                latency_ms=call_ms,
                share=call_ms * task.info.weight / whole_ms if call_ms and whole_ms else None,
                gflops=task.info.flops / call_ms / 1e6 if call_ms else None,
                schedule=schedules.get(name, "none"),
                donor=donors.get(name),
            )
        )
    return rows


def _measure_defaults(tasks: list[Task], fingerprint: Fingerprint) -> dict[str, float | None]:
    """Milliseconds of one call of each task under its default schedule."""
    target = target_from_json(fingerprint.target)
    found: dict[str, float | None] = {task.info.name: None for task in tasks}
    pairs = [(task, default_schedule(task.mod, target)) for task in tasks]
    ready = [(task, schedule) for task, schedule in pairs if schedule is not None]
    if ready:
        with WorkerPool(fingerprint.target, fingerprint.threads, fingerprint.threads) as pool:
            outcomes = Measurer(pool).measure(
                [schedule.mod for _, schedule in ready],
                [module_specs(task.mod) for task, _ in ready],
                [None] * len(ready),
            )
        for (task, _), outcome in zip(ready, outcomes, strict=True):
            found[task.info.name] = outcome.median_s * 1e3 if outcome.run_s else None
    return found


def _kernels_csv(rows: list[KernelRow]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["task", "weight", "latency_ms", "share", "gflops", "schedule", "donor"])
    for row in sorted(rows, key=lambda row: (-(row.share or 0.0), row.task)):
        figures = [row.latency_ms, row.share, row.gflops]
        texts = ["" if value is None else f"{value:.6g}" for value in figures]
        writer.writerow([row.task, row.weight, *texts, row.schedule, row.donor or ""])
    return stream.getvalue()
