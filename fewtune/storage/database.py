"""The tuning log: the journal while a run lasts, TVM's JSON database once it is done."""

from __future__ import annotations

import json
from pathlib import Path

from fewtune.runtime.tvm import ms, tvm
from fewtune.trial.trial import Trial, plain

WORKLOADS = "database_workload.json"
RECORDS = "database_tuning_record.json"


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
