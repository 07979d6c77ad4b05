"""The tuning log: the journal while a run lasts, TVM's JSON database once it is done."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fewtune.artifacts import LogInfo
from fewtune.errors import JournalError, last_line
from fewtune.runtime.tvm import ms, tvm
from fewtune.trial.trial import Trial, is_trace, plain

WORKLOADS = "database_workload.json"
RECORDS = "database_tuning_record.json"
ADVICE = "run the stage that wrote it again, or take the log from its backup"
# Those of a module are five, those of a record's trace six; transformed layouts have some more.
_MOST_LEVELS = 24


def record_of(
    trial: Trial, workload: ms.database.Workload, target: tvm.target.Target
) -> ms.database.TuningRecord:
    """A trial as TVM's tuning record.

    Raises
    ------
    JournalError
        If its trace is none of its task's.
    """
    arguments = [plain(info.as_json()) for info in _args_info(workload.mod)]
    target_config = plain(json.loads(str(target)))
    record = [trial.trace, trial.run_s or [1e10], target_config, arguments]
    try:
        return ms.database.TuningRecord.from_json(record, workload)
    except Exception as fault:  # noqa: BLE001 (TVM says so in many ways)
        raise JournalError(f"a trial's trace is none of TVM's ({last_line(fault)})") from None


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
    seal(directory)


def seal(directory: Path) -> None:
    """Note the digest of the two files in ``log.json``, if the folder has one."""
    if (directory / LogInfo.file_name).is_file():
        info = LogInfo.read(directory)
        info.model_copy(update={"sha256": digest(directory)}).write(directory)


def digest(directory: Path) -> str:
    """SHA-256 of the two files, in hex."""
    files = (directory / name for name in (WORKLOADS, RECORDS))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def read_database(directory: Path) -> ms.database.JSONDatabase:
    """Open a database that `write_database` wrote, as TVM itself would.

    Raises
    ------
    JournalError
        If a file is missing or damaged. TVM does not check it: a line ``{}`` ends the process.
    """
    workloads = _checked_lines(directory / WORKLOADS, _is_workload)
    _checked_lines(directory / RECORDS, lambda value: _is_record(value, workloads))
    info = LogInfo.read(directory) if (directory / LogInfo.file_name).is_file() else None
    if info is not None and info.sha256 not in ("", digest(directory)):
        raise JournalError(f"{directory} is not as it was written: {ADVICE}")
    try:
        return ms.database.JSONDatabase(
            str(directory / WORKLOADS), str(directory / RECORDS), allow_missing=False
        )
    except Exception as fault:  # noqa: BLE001 (TVM says so in many ways)
        raise JournalError(f"{directory}: TVM cannot read this log ({last_line(fault)})") from None


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
            raise JournalError(f"{path}: line {number} is damaged; {ADVICE}")
    return len(lines)


def _is_workload(value: Any) -> bool:
    """A hash, and a module as TVM's JSON in base 64, behind its length."""
    match value:
        case [str(number), str(module)] if number.isdecimal():
            return _is_flat(json.loads(base64.b64decode(module, validate=True)[8:]), _MOST_LEVELS)
    return False


def _is_flat(value: Any, levels: int) -> bool:
    """Whether JSON has so few levels: TVM reads each by a call, and its modules are lists."""
    layer = [value] if isinstance(value, dict | list) else []
    for _ in range(levels):
        inner = (each.values() if isinstance(each, dict) else each for each in layer)
        layer = [each for some in inner for each in some if isinstance(each, dict | list)]
    return not layer


def _is_record(value: Any, workloads: int) -> bool:
    """A workload's place, a trace, seconds, a target, the arguments."""
    match value:
        case [int(place), [trace, times, target, list(arguments)]]:
            return (
                0 <= place < workloads
                and is_trace(trace)
                and (times is None or (isinstance(times, list) and all(map(_is_time, times))))
                and (target is None or isinstance(target, dict | str))
                and all(isinstance(each, list) and len(each) == 3 for each in arguments)
                and _is_flat(value, _MOST_LEVELS)
            )
    return False


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf


def best_trials(
    database: ms.database.Database, module: tvm.IRModule, count: int
) -> list[ms.database.TuningRecord]:
    """The ``count`` fastest records of a workload, fastest first."""
    if not database.has_workload(module):
        return []
    return list(database.get_top_k(database.commit_workload(module), count))
