"""Share schedules: what representatives, or a bank, have to give, moved and measured."""

from __future__ import annotations

import hashlib
import math
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
    ShareRound,
    TuneReport,
)
from fewtune.machine import target_from_json
from fewtune.schedule.search_space import sampling
from fewtune.schedule.transfer import Donation
from fewtune.task.extract import Task
from fewtune.tuning import sharing
from fewtune.tuning.archive import log_info
from fewtune.tuning.known import measured_trials
from fewtune.tuning.log import RECORDS, Trial, best_trials, read_database, write_database
from fewtune.tuning.options import ShareOptions
from fewtune.tuning.state import RunState, TaskState
from fewtune.tuning.supervise import supervise
from fewtune.tvm_runtime import ms

# The cost model learns from so many trials of a donor: its best, and the rest evenly spread.
_TAUGHT = 48
_REFINEMENT = "refinement"
_RULES = {
    sharing.FIRST: "the most similar donors' best schedules, and some drawn by rule; the cost "
    "model's likeliest are measured",
    sharing.SECOND: f"tasks below {sharing.FAR:.0%} of the throughput of the best similar task ask "
    "the next most similar donors",
    _REFINEMENT: "small batches where the model gains most, until one promises less than "
    f"{sharing.LEAST_GAIN:.2%} of its latency",
}


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
    """Give every task that was not tuned a schedule; write the log of all into ``directory``.

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
    database = read_database(tune_directory)
    takers = {
        **{name: ([donor], []) for name, donor in selection.dependents.items()},
        **{name: ([], []) for name in selection.alone},
    }
    for name, donors in selection.second_donors.items():
        takers[name][1].extend(donors)
    takers = dict(sorted(takers.items()))
    events: list[dict[str, Any]] = []
    if takers:
        tuned_tasks = [by_name[name] for name in selection.representatives]
        measured = measured_trials(database, tuned_tasks)
        job = {
            "takers": takers,
            "donations": {
                task.info.name: _donations(database, task, options) for task in tuned_tasks
            },
            "taught": {n: [t.as_json() for t in _spread(each)] for n, each in measured.items()},
            "peers": _peers(tuned, by_name),
            "options": options.model_dump(mode="json"),
        }
        header = {
            "machine": fingerprint.identity(),
            "target": fingerprint.target,
            "workloads": {name: by_name[name].info.workload for name in takers},
            "takers": {name: list(pair) for name, pair in takers.items()},
            "log": hashlib.sha256((tune_directory / RECORDS).read_bytes()).hexdigest()[:16],
            "options": options.model_dump(mode="json"),
        }
        events = supervise(
            "fewtune.tuning.sharing:share_session",
            job,
            [*(by_name[name] for name in takers), *tuned_tasks],
            fingerprint,
            header,
            journal_directory,
            progress_path,
        )
    state = RunState([by_name[name] for name in takers], list(takers))
    state.replay(events)
    trials = {name: known.published() for name, known in state.tasks.items()}
    _write_log(directory, by_name, database, trials, fingerprint)
    _write_curve(directory, Curve.read(tune_directory), tuned, state, events)
    report = ShareReport(
        model=selection.model,
        strategy=selection.strategy,
        tasks=[_line(known, takers[name], events) for name, known in state.tasks.items()],
        rounds=_rounds(state, events),
        trials=state.trials,
        sharing_s=round(state.elapsed_s, 3),
        stopped_by=state.stopped_by or "nothing_to_tune",
    )
    report.write(directory)
    return report


def _donations(
    database: ms.database.Database, task: Task, options: ShareOptions
) -> list[dict[str, Any]]:
    """The task's best schedules, best first; a default schedule makes no choices to give."""
    records = [r for r in best_trials(database, task.mod, 1_000_000) if sampling(r.trace)]
    return [Donation.of(r.trace).as_json() for r in records[: options.count(len(records))]]


def _spread(trials: list[Trial]) -> list[Trial]:
    """Of trials, fastest first, the faster half of a sample and the rest evenly spread."""
    if len(trials) <= _TAUGHT:
        return trials
    best, rest = trials[: _TAUGHT // 2], trials[_TAUGHT // 2 :]
    count = _TAUGHT - len(best)
    return best + [rest[place * len(rest) // count] for place in range(count)]


def _peers(tuned: TuneReport, by_name: dict[str, Task]) -> list[dict[str, Any]]:
    """What the tuned tasks reached, as `TaskProgress` takes it."""
    peers = []
    for line in tuned.tasks:
        info = by_name[line.task].info
        known = [ms for ms in (line.best_ms, line.default_ms) if ms is not None]
        peers.append(
            {
                "name": info.name,
                "weight": info.weight,
                "flops": info.flops,
                "family": info.operator,
                "best_s": [min(known) / 1e3] if known else [],
            }
        )
    return peers


def _line(known: TaskState, taker: tuple[list[str], list[str]], events: list[dict]) -> SharedTask:
    """How one task fared, read from the journal."""
    name = known.task.info.name
    rounds = [e for e in events if e.get("task") == name and e.get("round")]
    origins: dict[str, tuple[str | None, int | None]] = {}
    failures: Counter[str] = Counter(known.failures())
    for event in rounds:
        failures.update(event["reasons"])
        for entry, donor, rank in zip(
            event["trials"], event["donors"], event["ranks"], strict=True
        ):
            origins.setdefault(Trial.from_json(entry).key, (donor, rank))
    default_s = known.default.outcome.median_s if known.default is not None else math.inf
    ranked = known.ranked()
    best = ranked[0] if ranked else None
    donor, rank = None, None
    if best is None or (known.default is not None and best.key == known.default.key):
        status = "default"
    elif best.key in origins:
        donor, rank = origins[best.key]
        status = "shared" if donor is not None else "drawn"
    else:
        status = "refined"
    shared_s = min((t.outcome.median_s for t in known.trials if t.key in origins), default=math.inf)
    return SharedTask(
        task=name,
        donors=taker[0],
        second_donors=taker[1] if any(e["round"] == sharing.SECOND for e in rounds) else [],
        donor=donor,
        donor_rank=rank,
        status=status,
        offered=sum(event["offered"] for event in rounds),
        valid=sum(1 for trial in known.trials if trial.run_s),
        trials=len(known.trials),
        refining_trials=len(known.trials) - sum(len(e["trials"]) for e in rounds),
        default_ms=_ms(default_s),
        shared_ms=_ms(min(shared_s, default_s)),
        best_ms=_ms(best.outcome.median_s if best is not None else math.inf),
        failures=dict(sorted(failures.items())),
        note=f"TVM died of {known.crashed}" if known.crashed else "",
    )


def _ms(time_s: float) -> float | None:
    return time_s * 1e3 if time_s != math.inf else None


def _rounds(state: RunState, events: list[dict[str, Any]]) -> list[ShareRound]:
    """What each round cost and gained, in their order."""
    names = (sharing.FIRST, sharing.SECOND, _REFINEMENT)
    spent_s, gained_s = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    trials, touched = dict.fromkeys(names, 0), {name: set() for name in names}
    for name, event, before_s, after_s in _steps(state, events):
        spent_s[name] += sum(event["phases"].values())
        trials[name] += len(event["trials"])
        touched[name].add(event["task"])
        if before_s != math.inf:
            weight = state.tasks[event["task"]].task.info.weight
            gained_s[name] += weight * (before_s - after_s)
    return [
        ShareRound(
            name=name,
            rule=_RULES[name],
            tasks=len(touched[name]),
            trials=trials[name],
            spent_s=round(spent_s[name], 3),
            gained_ms=gained_s[name] * 1e3,
        )
        for name in names
    ]


def _steps(
    state: RunState, events: list[dict[str, Any]]
) -> list[tuple[str, dict[str, Any], float, float]]:
    """Every measured batch with its round, and its task's best seconds before and after."""
    steps, best_s = [], dict[str, float]()
    for name, known in state.tasks.items():
        best_s[name] = known.default.outcome.median_s if known.default is not None else math.inf
    for event in events:
        if event["kind"] != "batch":
            continue
        task = event["task"]
        found = [Trial.from_json(entry).outcome.median_s for entry in event["trials"]]
        before_s, best_s[task] = best_s[task], min([best_s[task], *found])
        steps.append((event.get("round", _REFINEMENT), event, before_s, best_s[task]))
    return steps


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
    directory: Path, before: Curve, tuned: TuneReport, state: RunState, events: list[dict[str, Any]]
) -> None:
    """Carry the tune stage's curve on through the shared tasks.

    Before sharing, these count with their default schedules, which were measured then.
    """
    defaults_s = {
        name: known.default.outcome.median_s
        for name, known in state.tasks.items()
        if known.default is not None and known.default.run_s
    }
    rest_ms = sum(state.tasks[n].task.info.weight * s * 1e3 for n, s in defaults_s.items())
    points = [
        point.model_copy(update={"estimated_latency_ms": point.estimated_latency_ms + rest_ms})
        for point in before.points
    ]
    trials = before.points[-1].trials if before.points else 0
    estimate_ms = points[-1].estimated_latency_ms if points else rest_ms
    for _, event, before_s, after_s in _steps(state, events):
        trials += len(event["trials"])
        if before_s != math.inf:
            weight = state.tasks[event["task"]].task.info.weight
            estimate_ms -= weight * (before_s - after_s) * 1e3
        points.append(
            CurvePoint(
                elapsed_s=round(tuned.tuning_s + event["elapsed_s"], 3),
                trials=trials,
                estimated_latency_ms=estimate_ms,
            )
        )
    Curve(points=points).write(directory)
