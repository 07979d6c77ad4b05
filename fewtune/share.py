"""Share schedules: the representative's best ones, moved to its dependents and measured."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

from fewtune.artifacts import (
    Curve,
    CurvePoint,
    Fingerprint,
    Selection,
    SharedTask,
    ShareReport,
    TunedTask,
    TuneReport,
)
from fewtune.machine import target_from_json
from fewtune.task.extract import Task
from fewtune.tuning.archive import log_info
from fewtune.tuning.dependents import median_s
from fewtune.tuning.known import measured_trials
from fewtune.tuning.log import (
    RECORDS,
    Trial,
    read_database,
    write_database,
)
from fewtune.tuning.options import ShareOptions, TuneOptions
from fewtune.tuning.run import run_session
from fewtune.tuning.supervise import supervise
from fewtune.tvm_runtime import ms


def share_schedules(
    tasks: list[Task],
    selection: Selection,
    tune_directory: Path,
    fingerprint: Fingerprint,
    options: ShareOptions,
    journal_directory: Path,
    directory: Path,
    progress_path: Path | None = None,
    bank_directory: Path | None = None,  # noqa: ARG001 (not looked at yet)
) -> ShareReport:
    """Give every dependent task a schedule and write the log of all tasks into ``directory``.

    Parameters
    ----------
    tasks : list of Task
    selection : Selection
    tune_directory : Path
        What the tune stage wrote.
    fingerprint : Fingerprint
    options : ShareOptions
    journal_directory : Path
        Scratch that outlives a kill.
    directory : Path
        Gets ``share.json``, ``curve.json`` and TVM's two database files.
    progress_path : Path, optional
    bank_directory : Path, optional
        What stage build_bank wrote; not looked at yet.

    Raises
    ------
    FewtuneError
        What stopped the measuring, in one line.
    """
    by_name = {task.info.name: task for task in tasks}
    tuned = TuneReport.read(tune_directory)
    dependents = dict(sorted(selection.dependents.items()))
    header = {
        "machine": fingerprint.identity(),
        "target": fingerprint.target,
        "workloads": {name: by_name[name].info.workload for name in dependents},
        "dependents": dependents,
        "log": _digest(tune_directory),
        "options": options.model_dump(mode="json", exclude={"fallback_trials", "seed"}),
    }
    events: list[dict[str, Any]] = []
    if dependents:
        job = {
            "tune_directory": str(tune_directory),
            "dependents": dependents,
            "options": options.model_dump(mode="json"),
        }
        involved = sorted({*dependents, *dependents.values()})
        events = supervise(
            "fewtune.tuning.dependents:measure_dependents",
            job,
            [by_name[name] for name in involved],
            fingerprint,
            header,
            journal_directory,
            progress_path,
        )
    shared, trials = _collect(events, dependents)
    database = read_database(tune_directory)
    unserved = [name for name, line in shared.items() if line.status == "default"]
    elapsed_s = max((event.get("elapsed_s", 0.0) for event in events), default=0.0)
    if unserved and options.fallback_trials:
        print(f"tuning {len(unserved)} tasks that no shared schedule serves", flush=True)
        donors = sorted({dependents[name] for name in unserved})
        state = run_session(
            [by_name[name] for name in [*unserved, *donors]],
            unserved,
            fingerprint,
            TuneOptions(
                trials_per_task=options.fallback_trials,
                # Small batches, so that what is left goes where the model gains most.
                batch_size=min(8, options.fallback_trials),
                seed=options.seed,
            ),
            journal_directory / "fallback",
            progress_path,
            {
                **measured_trials(database, [by_name[name] for name in donors]),
                **{name: trials[name] for name in unserved},
            },
        )
        elapsed_s += state.elapsed_s
        for name in unserved:
            shared[name] = _tuned_itself(shared[name], state.tasks[name].report())
            trials[name] = state.tasks[name].published() or trials[name]
    _write_log(directory, by_name, database, trials, fingerprint)
    _write_curve(directory, tune_directory, events, tuned, by_name)
    report = ShareReport(
        model=selection.model,
        strategy=selection.strategy,
        tasks=[shared[name] for name in dependents],
        trials=sum(line.trials for line in shared.values()),
        sharing_s=round(elapsed_s, 3),
    )
    report.write(directory)
    return report


def _collect(
    events: list[dict[str, Any]], dependents: dict[str, str]
) -> tuple[dict[str, SharedTask], dict[str, list[Trial]]]:
    """Read from the journal how each dependent fared, and its valid trials, fastest first."""
    lines: dict[str, SharedTask] = {}
    trials: dict[str, list[Trial]] = {}
    found = {event["task"]: event for event in events if event["kind"] in ("shared", "crash")}
    for name, representative in dependents.items():
        event = found.get(name, {"kind": "crash", "signal": "an interruption"})
        if event["kind"] == "crash":
            event = {**_NOTHING, "note": f"TVM died of {event['signal']}"}
        candidates = event["candidates"]
        valid = [entry for entry in candidates if entry.get("run_s")]
        best = min(valid, key=median_s, default=None)
        default_s = median_s(event["default"])
        served = best is not None and median_s(best) < default_s
        failures = Counter(entry["cause"] for entry in candidates if entry.get("cause"))
        failures.update(event["reasons"])
        measured = [e for e in [event["default"], *candidates] if e and e.get("run_s")]
        trials[name] = [Trial.from_json(e) for e in sorted(measured, key=median_s)]
        best_s = min(default_s, median_s(best))
        rank = best["rank"] if served and best is not None else None
        lines[name] = SharedTask(
            task=name,
            representative=representative,
            donor=representative if rank is not None else None,
            donor_rank=rank,
            status="default" if not served else "drawn" if rank is None else "shared",
            candidates=event["offered"],
            valid=len(valid),
            trials=len(candidates),
            default_ms=default_s * 1e3 if default_s != float("inf") else None,
            best_ms=best_s * 1e3 if best_s != float("inf") else None,
            failures=dict(sorted(failures.items())),
            note=event.get("note", ""),
        )
    return lines, trials


_NOTHING: dict[str, Any] = {"candidates": [], "offered": 0, "reasons": {}, "default": None}


def _tuned_itself(line: SharedTask, tuned: TunedTask) -> SharedTask:
    """The report line of a dependent after its own small search."""
    default_ms = tuned.default_ms
    won = tuned.best_ms is not None and (default_ms is None or tuned.best_ms < default_ms)
    why = "no shared schedule was valid" if not line.valid else "none beat the default schedule"
    return line.model_copy(
        update={
            "status": "tuned_itself" if won else "default",
            "trials": line.trials + tuned.trials,
            "default_ms": default_ms if default_ms is not None else line.default_ms,
            "best_ms": tuned.best_ms if tuned.best_ms is not None else line.best_ms,
            "failures": dict(sorted((Counter(line.failures) + Counter(tuned.failures)).items())),
            "note": "; ".join(text for text in (line.note, why) if text),
        }
    )


def _digest(tune_directory: Path) -> str:
    return hashlib.sha256((tune_directory / RECORDS).read_bytes()).hexdigest()[:16]


def _write_log(
    directory: Path,
    by_name: dict[str, Task],
    database: ms.database.Database,
    trials: dict[str, list[Trial]],
    fingerprint: Fingerprint,
) -> None:
    """Write the log of all tasks: the tune stage's records, and what sharing measured."""
    known = [t for n, t in by_name.items() if n not in trials and database.has_workload(t.mod)]
    everything = {**trials, **measured_trials(database, known)}
    log_info(fingerprint).write(directory)
    modules = {name: by_name[name].mod for name in sorted(everything)}
    write_database(directory, modules, everything, target_from_json(fingerprint.target))


def _write_curve(
    directory: Path,
    tune_directory: Path,
    events: list[dict[str, Any]],
    tuned: TuneReport,
    by_name: dict[str, Task],
) -> None:
    """Carry the tune stage's curve on through the shared tasks."""
    points = list(Curve.read(tune_directory).points)
    if points:
        last = points[-1]
        trials, estimate_ms = last.trials, last.estimated_latency_ms
        for event in (event for event in events if event["kind"] == "shared"):
            before_ms = tuned.defaults_ms.get(event["task"])
            best_s = min((median_s(entry) for entry in event["candidates"]), default=float("inf"))
            trials += len(event["candidates"])
            if before_ms is not None and best_s * 1e3 < before_ms:
                estimate_ms -= by_name[event["task"]].info.weight * (before_ms - best_s * 1e3)
            points.append(
                CurvePoint(
                    elapsed_s=round(tuned.tuning_s + event["elapsed_s"], 3),
                    trials=trials,
                    estimated_latency_ms=estimate_ms,
                )
            )
    Curve(points=points).write(directory)
