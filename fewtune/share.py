"""Share schedules: the representative's best ones, moved to its dependents and measured."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

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
from fewtune.schedule.default import default_schedule
from fewtune.schedule.transfer import Receiver, sampling
from fewtune.task.extract import Task
from fewtune.tuning.journal import Journal
from fewtune.tuning.log import (
    RECORDS,
    Trial,
    best_trials,
    plain,
    read_database,
    trace_json,
    trace_key,
    write_database,
)
from fewtune.tuning.measure import Measurer, module_specs
from fewtune.tuning.options import TuneOptions
from fewtune.tuning.pool import WorkerPool
from fewtune.tuning.progress import Progress, Snapshot
from fewtune.tuning.run import run_session
from fewtune.tuning.supervise import Clock, supervise
from fewtune.tvm_runtime import ms, tvm


class ShareOptions(BaseModel):
    """How many schedules are shared, and what happens where none serves."""

    model_config = ConfigDict(extra="forbid")

    top: str | int = Field(
        default="10", description="the best N schedules of the representative, or the best N%"
    )
    fallback_trials: int = Field(
        default=16, ge=0, le=100_000, description="trials for a task that no schedule serves"
    )
    seed: int = Field(default=0, ge=0, lt=2**31)

    @field_validator("top")
    @classmethod
    def _known(cls, value: str | int) -> str | int:
        matched = re.fullmatch(r"([1-9]\d*|\d*\.\d+)(%?)", str(value).strip())
        if not matched or ("." in matched[1] and not matched[2]):
            raise ValueError('give a number from 1 on, such as "10", or a part, such as "5%"')
        if matched[2] and not 0 < float(matched[1]) <= 100:
            raise ValueError('give a part above 0% and up to 100%, such as "5%"')
        return value

    def count(self, schedules: int) -> int:
        """How many of ``schedules`` valid ones are shared: at least one, if there is one."""
        text = str(self.top).strip()
        if text.endswith("%"):
            return min(schedules, max(1, round(float(text[:-1]) / 100 * schedules)))
        return min(schedules, int(text))


def share_schedules(
    tasks: list[Task],
    selection: Selection,
    tune_directory: Path,
    fingerprint: Fingerprint,
    options: ShareOptions,
    journal_directory: Path,
    directory: Path,
    progress_path: Path | None = None,
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
        "top": str(options.top),
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
            f"{__name__}:measure_dependents",
            job,
            [by_name[name] for name in involved],
            fingerprint,
            header,
            journal_directory,
            progress_path,
        )
    shared, trials = _collect(events, dependents)
    unserved = [name for name, line in shared.items() if line.status == "default"]
    elapsed_s = max((event.get("elapsed_s", 0.0) for event in events), default=0.0)
    if unserved and options.fallback_trials:
        print(f"tuning {len(unserved)} tasks that no shared schedule serves", flush=True)
        state = run_session(
            [by_name[name] for name in unserved],
            unserved,
            fingerprint,
            TuneOptions(
                trials_per_task=options.fallback_trials,
                batch_size=min(16, options.fallback_trials),
                allocation="round_robin",
                seed=options.seed,
            ),
            journal_directory / "fallback",
            progress_path,
        )
        elapsed_s += state.elapsed_s
        for name in unserved:
            shared[name] = _tuned_itself(shared[name], state.tasks[name].report())
            trials[name] = state.tasks[name].published() or trials[name]
    _write_log(directory, by_name, tune_directory, trials, fingerprint)
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


def measure_dependents(
    job: dict[str, Any],
    tasks: list[Task],
    target_json: str,
    threads: int,  # noqa: ARG001 (every work is called alike)
    journal: Journal,
    progress: Progress,
    pool: WorkerPool,
) -> None:
    """Child process: move and measure schedules for every dependent that the journal lacks."""
    target = target_from_json(target_json)
    options = ShareOptions.model_validate(job["options"])
    database = read_database(Path(job["tune_directory"]))
    by_name = {task.info.name: task for task in tasks}
    done = {e["task"] for e in journal.events if e["kind"] in ("shared", "crash")}
    clock = Clock(max((e.get("elapsed_s", 0.0) for e in journal.events), default=0.0))
    measurer = Measurer(pool)
    measured = sum(len(e.get("candidates", ())) for e in journal.events)
    for place, (name, representative) in enumerate(job["dependents"].items()):
        if name in done:
            continue
        journal.append({"kind": "start", "task": name})
        event = _share_one(
            by_name[name], by_name[representative], database, options, measurer, target
        )
        journal.append({**event, "elapsed_s": round(clock.elapsed_s, 3)})
        measured += len(event["candidates"])
        best_s = min((_median(c) for c in event["candidates"]), default=float("inf"))
        default_s = _median(event["default"])
        pace_s = clock.elapsed_s / (place + 1)
        progress.show(
            Snapshot(
                phase=f"share {place + 1}/{len(job['dependents'])} tasks,",
                task=f"{name} from {representative}",
                trials=measured,
                trials_total=measured,
                default_ms=default_s * 1e3 if default_s != float("inf") else None,
                best_ms=best_s * 1e3 if best_s != float("inf") else None,
                elapsed_s=clock.elapsed_s,
                left_s=pace_s * (len(job["dependents"]) - place - 1),
                failures=dict(sorted(measurer.failures.items())),
            )
        )


def _share_one(
    task: Task,
    donor: Task,
    database: ms.database.Database,
    options: ShareOptions,
    measurer: Measurer,
    target: tvm.target.Target,
) -> dict[str, Any]:
    """Move the donor's best schedules to ``task``; measure them beside the default schedule."""
    # A default schedule makes no choices: there is nothing of it to move.
    everything = [r for r in best_trials(database, donor.mod, 1_000_000) if sampling(r.trace)]
    records = everything[: options.count(len(everything))]
    receiver = Receiver(task.mod, target)
    reasons: Counter[str] = Counter()
    schedules: dict[str, tuple[int, tvm.s_tir.Schedule]] = {}
    for rank, record in enumerate(records, start=1):
        moved = receiver.take(record.trace)
        if moved.schedule is None:
            reasons[moved.reason] += 1
        else:
            key = trace_key(trace_json(moved.schedule.trace))
            schedules.setdefault(key, (rank, moved.schedule))
    default = default_schedule(task.mod, target)
    candidates = [schedule for _, schedule in schedules.values()]
    # The default is measured in the same batch: its figure of an hour ago is no comparison.
    first = [default] if default is not None else []
    batch = [*first, *candidates]
    outcomes = measurer.measure(
        [schedule.mod for schedule in batch],
        [module_specs(task.mod)] * len(batch),
        [None] * len(batch),
    )
    entries = []
    for schedule, outcome in zip(batch, outcomes, strict=True):
        trial = Trial(trace_json(schedule.trace), outcome.run_s, outcome.cause)
        entries.append(trial.as_json())
    ranks = [rank for rank, _ in schedules.values()]
    return {
        "kind": "shared",
        "task": task.info.name,
        "offered": len(records),
        "reasons": dict(sorted(reasons.items())),
        "default": entries[0] if first else None,
        "candidates": [
            {**entry, "rank": rank}
            for entry, rank in zip(entries[len(first) :], ranks, strict=True)
        ],
    }


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
        best = min(valid, key=_median, default=None)
        default_s = _median(event["default"])
        served = best is not None and _median(best) < default_s
        failures = Counter(entry["cause"] for entry in candidates if entry.get("cause"))
        failures.update(event["reasons"])
        measured = [e for e in [event["default"], *candidates] if e and e.get("run_s")]
        trials[name] = [Trial.from_json(e) for e in sorted(measured, key=_median)]
        best_s = min(default_s, _median(best))
        lines[name] = SharedTask(
            task=name,
            representative=representative,
            donor=representative if served else None,
            donor_rank=best["rank"] if served and best is not None else None,
            status="shared" if served else "default",
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


def _median(entry: dict[str, Any] | None) -> float:
    return Trial.from_json(entry).outcome.median_s if entry else float("inf")


def _digest(tune_directory: Path) -> str:
    return hashlib.sha256((tune_directory / RECORDS).read_bytes()).hexdigest()[:16]


def _write_log(
    directory: Path,
    by_name: dict[str, Task],
    tune_directory: Path,
    trials: dict[str, list[Trial]],
    fingerprint: Fingerprint,
) -> None:
    """Write the log of all tasks: the tune stage's records, and what sharing measured."""
    database = read_database(tune_directory)
    everything = dict(trials)
    for name, task in by_name.items():
        if name not in trials and database.has_workload(task.mod):
            everything[name] = [
                Trial(plain(record.trace.as_json()), [float(s) for s in record.run_secs], None)
                for record in best_trials(database, task.mod, 1_000_000)
            ]
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
            best_s = min((_median(entry) for entry in event["candidates"]), default=float("inf"))
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
