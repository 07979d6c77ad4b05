"""The tuning log: the journal while a run lasts, TVM's JSON database once it is done."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fewtune.errors import JournalError
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
    """Write valid trials as TVM's JSON database, tasks in the given order."""
    (directory / WORKLOADS).touch()
    (directory / RECORDS).touch()
    database = ms.database.JSONDatabase(str(directory / WORKLOADS), str(directory / RECORDS))
    for name, module in modules.items():
        workload = database.commit_workload(module)
        for trial in trials.get(name, []):
            if trial.run_s:
                database.commit_tuning_record(record_of(trial, workload, target))


def read_database(directory: Path) -> ms.database.JSONDatabase:
    """Open a database that `write_database` wrote, as TVM itself would.

    Raises
    ------
    JournalError
        If a file is missing or damaged. TVM does not check it: a line ``{}`` ends the process.
    """
    workloads = _checked_lines(directory / WORKLOADS, _is_workload)
    _checked_lines(directory / RECORDS, lambda value: _is_record(value, workloads))
    try:
        return ms.database.JSONDatabase(
            str(directory / WORKLOADS), str(directory / RECORDS), allow_missing=False
        )
    except Exception as fault:  # noqa: BLE001 (TVM says so in many ways)
        lines = str(fault).strip().splitlines() or [type(fault).__name__]
        raise JournalError(f"{directory}: TVM cannot read this log ({lines[-1]})") from None


def _checked_lines(path: Path, is_right: Callable[[Any], bool]) -> int:
    """Count the lines of a file of JSON; refuse the first wrong one."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise JournalError(f"{path}: cannot be read ({error.strerror})") from None
    for number, line in enumerate(lines, start=1):
        try:
            right = is_right(json.loads(line))
        except (ValueError, RecursionError):
            right = False
        if not right:
            raise JournalError(
                f"{path}: line {number} is damaged; run the stage that wrote it again, or take the "
                "log from its backup"
            )
    return len(lines)


def _is_workload(value: Any) -> bool:
    """A hash and a module, both as text."""
    match value:
        case [str(digest), str(module)]:
            return digest.isdecimal() and len(module) > 0
    return False


def _is_record(value: Any, workloads: int) -> bool:
    """A workload's place, a trace, seconds, a target, the arguments."""
    match value:
        case [int(place), [[list(steps), list(decisions)], times, target, list(arguments)]]:
            return (
                0 <= place < workloads
                and all(isinstance(step, list) and len(step) == 4 for step in steps)
                and all(_is_step(*step) for step in steps)
                and all(isinstance(each, list) and len(each) == 2 for each in decisions)
                and all(isinstance(each[0], int) and each[0] < len(steps) for each in decisions)
                and (times is None or (isinstance(times, list) and all(map(_is_number, times))))
                and (target is None or isinstance(target, dict | str))
                and all(isinstance(each, list) and len(each) == 3 for each in arguments)
            )
    return False


def _is_step(name: Any, inputs: Any, attributes: Any, outputs: Any) -> bool:
    lists = (inputs, attributes, outputs)
    return isinstance(name, str) and all(isinstance(each, list) for each in lists)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def best_trials(
    database: ms.database.Database, module: tvm.IRModule, count: int
) -> list[ms.database.TuningRecord]:
    """The ``count`` fastest records of a workload, fastest first."""
    if not database.has_workload(module):
        return []
    return list(database.get_top_k(database.commit_workload(module), count))
