"""The tuning log: the journal while a run lasts, TVM's JSON database once it is done."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewtune.tuning.outcome import Outcome
from fewtune.tvm_runtime import ms, tvm

WORKLOADS = "database_workload.json"
RECORDS = "database_tuning_record.json"


@dataclass(frozen=True)
class Trial:
    """One measured candidate, as the journal holds it.

    Attributes
    ----------
    key : str
        Its trace as JSON text; two trials of the same schedule share it. As Python's lists a trace
        takes ten times the memory, and a long run keeps thousands.
    run_s : list of float or None
        Seconds of one call, a sample a repeat.
    cause : str or None
        Why there are none.
    pace : float
        How many times as long it took in fact (`fewtune.tuning.yardstick`).
    """

    key: str
    run_s: list[float] | None
    cause: str | None
    pace: float = 1.0

    @property
    def trace(self) -> Any:
        """The trace as JSON values."""
        return json.loads(self.key)

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.run_s, self.cause, pace=self.pace)

    def as_json(self) -> dict[str, Any]:
        entry: dict[str, Any] = {"trace": self.trace}
        if self.run_s is not None:
            entry["run_s"] = self.run_s
        if self.cause is not None:
            entry["cause"] = self.cause
        if self.pace != 1:
            entry["pace"] = self.pace
        return entry

    @staticmethod
    def of(schedule: tvm.s_tir.Schedule, outcome: Outcome) -> Trial:
        """A candidate that was just measured."""
        return Trial(trace_key(schedule.trace), outcome.run_s, outcome.cause, outcome.pace)

    @staticmethod
    def from_record(record: ms.database.TuningRecord) -> Trial:
        """A measured candidate, as TVM's database holds it."""
        return Trial(trace_key(record.trace), [float(s) for s in record.run_secs], None)

    @staticmethod
    def from_json(entry: dict[str, Any]) -> Trial:
        samples_s, cause = entry.get("run_s"), entry.get("cause")
        return Trial(_text(entry["trace"]), samples_s, cause, entry.get("pace", 1.0))


def plain(value: Any) -> Any:
    """Turn what TVM's ``as_json`` returns (its own containers) into plain Python."""
    if value is None or isinstance(value, bool | str | int | float):
        return value
    if hasattr(value, "items"):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "__iter__"):
        return [plain(item) for item in value]
    if hasattr(value, "value"):
        return plain(value.value)
    return str(value)


def trace_key(trace: tvm.s_tir.schedule.Trace | None) -> str:
    """A trace as JSON text; equal traces give equal texts."""
    return _text(plain(trace.as_json()) if trace is not None else None)


def _text(trace: Any) -> str:
    return json.dumps(trace, separators=(",", ":"))


def record_of(
    trial: Trial, workload: ms.database.Workload, target: tvm.target.Target
) -> ms.database.TuningRecord:
    """A trial as TVM's tuning record."""
    arguments = [plain(info.as_json()) for info in _args_info(workload.mod)]
    target_config = plain(json.loads(str(target)))
    return ms.database.TuningRecord.from_json(
        [trial.trace, trial.run_s or [1e10], target_config, arguments], workload
    )


def replay(module: tvm.IRModule, trial: Trial, target: tvm.target.Target) -> tvm.s_tir.Schedule:
    """Apply a trial's trace to its task's module."""
    schedule = tvm.s_tir.Schedule(module)
    read_trace(module, trial, target).apply_to_schedule(schedule, remove_postproc=False)
    return schedule


def read_trace(
    module: tvm.IRModule, trial: Trial, target: tvm.target.Target
) -> tvm.s_tir.schedule.Trace:
    """A trial's trace as TVM's object."""
    return record_of(trial, ms.database.Workload(module), target).trace


def _args_info(module: tvm.IRModule) -> list[ms.arg_info.ArgInfo]:
    return list(ms.arg_info.ArgInfo.from_prim_func(module["main"]))


def write_database(
    directory: Path,
    modules: dict[str, tvm.IRModule],
    trials: dict[str, list[Trial]],
    target: tvm.target.Target,
) -> None:
    """Write trials as TVM's JSON database, valid ones only, tasks in the order given."""
    (directory / WORKLOADS).touch()
    (directory / RECORDS).touch()
    database = ms.database.JSONDatabase(str(directory / WORKLOADS), str(directory / RECORDS))
    for name, module in modules.items():
        workload = database.commit_workload(module)
        for trial in trials.get(name, []):
            if trial.run_s:
                database.commit_tuning_record(record_of(trial, workload, target))


def read_database(directory: Path) -> ms.database.JSONDatabase:
    """Open a database that `write_database` wrote, as TVM itself would."""
    return ms.database.JSONDatabase(
        str(directory / WORKLOADS), str(directory / RECORDS), allow_missing=False
    )


def best_trials(
    database: ms.database.Database, module: tvm.IRModule, count: int
) -> list[ms.database.TuningRecord]:
    """The ``count`` fastest records of a workload, fastest first."""
    if not database.has_workload(module):
        return []
    return list(database.get_top_k(database.commit_workload(module), count))
