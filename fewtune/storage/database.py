"""The tuning log: the journal while a run lasts, TVM's JSON database once it is done."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fewtune.artifacts import Fingerprint, LogInfo
from fewtune.errors import InputError, JournalError, last_line
from fewtune.process.apart import Job, at, run_apart
from fewtune.runtime.target import target_from_json
from fewtune.runtime.tvm import module_of, ms, tvm
from fewtune.task.extract import workload_hash
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
    # TVM reads the memory behind what it expects.
    if not is_trace(trial.trace):
        raise JournalError("a trial's trace is none of TVM's")
    given = ms.arg_info.ArgInfo.from_prim_func(workload.mod["main"])
    arguments = [plain(info.as_json()) for info in given]
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
        If a file is missing or damaged. TVM does not check it: a line ``{}`` ends the process, and
        who makes a log can make its digest.
    """
    workloads = _checked_lines(directory / WORKLOADS, _is_workload)
    _checked_lines(directory / RECORDS, lambda value: _is_record(value, workloads))
    noted = LogInfo.read(directory).sha256 if (directory / LogInfo.file_name).is_file() else ""
    if noted not in ("", digest(directory)):
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


# Seeds of a task: as many as a small batch.
_MOST_SEEDS = 8


def log_info(fingerprint: Fingerprint) -> LogInfo:
    """The conditions of a log's times."""
    return LogInfo(
        machine=fingerprint.device,
        target=fingerprint.target,
        threads=fingerprint.threads,
        tvm=fingerprint.versions.get("apache-tvm", ""),
        checked=True,
    )


def merge(directories: list[Path], directory: Path, best: int | None = None) -> dict[str, int]:
    """Write the trials of several logs into one.

    A schedule in several logs gets the median of its times.

    Parameters
    ----------
    directories : list of Path
        Logs to read.
    directory : Path
        An existing folder for the result.
    best : int, optional
        Keep at most so many of each workload, fastest first.

    Returns
    -------
    kept : dict of int
        Trials kept, by workload hash.

    Raises
    ------
    InputError
        If a folder holds no log, or two logs hold for different machines, targets or versions.
    """
    infos = [read_info(path) for path in directories]
    for path, info in zip(directories, infos, strict=True):
        if difference := difference_of(infos[0], info):
            raise InputError(f"{path} cannot be merged with {directories[0]}: {difference}")
    found = read_workloads(directories)
    kept = {digest: logged.trials[:best] for digest, logged in found.items()}
    infos[0].model_copy(update={"checked": all(info.checked for info in infos)}).write(directory)
    write_database(
        directory,
        {digest: logged.module for digest, logged in found.items()},
        kept,
        target_from_json(infos[0].target),
    )
    return {digest: len(trials) for digest, trials in kept.items()}


@dataclass(frozen=True)
class LoggedWorkload:
    """One workload as some logs hold it.

    Attributes
    ----------
    module : IRModule
    trials : list of Trial
        Valid ones, each schedule once with the median of its times, fastest first.
    logs : list of Path
        The logs that hold it, in the order read.
    """

    module: tvm.IRModule
    trials: list[Trial]
    logs: list[Path]


def read_workloads(directories: list[Path]) -> dict[str, LoggedWorkload]:
    """All that some logs of one machine hold, by workload hash and in its order.

    Raises
    ------
    JournalError
        If TVM cannot read a log.
    """
    modules: dict[str, tvm.IRModule] = {}
    times_s: dict[str, dict[str, list[float]]] = {}
    logs: dict[str, dict[Path, None]] = {}
    # In a child process: others may have made the logs, and can crash TVM.
    paths = [str(path.resolve()) for path in directories]
    read = run_apart(ReadLogs(paths=paths)) if paths else []
    for path, log in zip(directories, read, strict=True):
        for digest, key, run_s in log["trials"]:
            if digest not in modules:
                modules[digest] = module_of(log["modules"][digest])
            logs.setdefault(digest, {})[path] = None
            times = times_s.setdefault(digest, {}).setdefault(key, [])
            times.append(statistics.median(run_s))
    found = {}
    for digest in sorted(modules):
        ranked = sorted((statistics.median(t), key) for key, t in times_s[digest].items())
        trials = [Trial(key, [time_s], None) for time_s, key in ranked]
        found[digest] = LoggedWorkload(modules[digest], trials, list(logs[digest]))
    return found


def logs_below(directory: Path, fingerprint: Fingerprint, use: str) -> list[Path]:
    """Every log below a folder, sorted; none if there is no such folder.

    Parameters
    ----------
    directory : Path
    fingerprint : Fingerprint
        Where they are to be used.
    use : str
        For the message: what a foreign log cannot be, such as ``started from``.

    Raises
    ------
    InputError
        If a log there is of another machine, target, TVM version or way of measuring.
    """
    expected = log_info(fingerprint)
    logs = sorted(path.parent for path in directory.glob(f"**/{LogInfo.file_name}"))
    for path in logs:
        info = read_info(path)
        if difference := difference_of(expected, info):
            raise InputError(f"{path} cannot be {use}: {difference}; move it out of {directory}")
    return logs


def require_own(directory: Path, fingerprint: Fingerprint) -> None:
    """Require that a stage's log is of this machine, target, TVM version and way of measuring.

    Parameters
    ----------
    directory : Path
        Folder of a log; a folder without one passes.
    fingerprint : Fingerprint

    Raises
    ------
    InputError
        If it is not.
    """
    if (directory / LogInfo.file_name).is_file():
        found = LogInfo.read(directory)
        if difference := difference_of(log_info(fingerprint), found):
            raise InputError(f"{directory} is of no use here: {difference}; run its stage again")


def read_seeds(
    directory: Path, workloads: dict[str, str], fingerprint: Fingerprint
) -> dict[str, list[Trial]]:
    """The best trials that logs below a folder hold for some tasks.

    Parameters
    ----------
    directory : Path
        Folder of logs, one a subfolder; it may be missing.
    workloads : dict of str
        Workload hash by task.
    fingerprint : Fingerprint
        Where they are to be used.

    Raises
    ------
    InputError
        If a log there is of another machine, target, TVM version or way of measuring.
    """
    found = read_workloads(logs_below(directory, fingerprint, "started from"))
    return {
        name: found[digest].trials[:_MOST_SEEDS]
        for name, digest in sorted(workloads.items())
        if digest in found
    }


def read_info(directory: Path) -> LogInfo:
    """The conditions of a log's times, from its own file.

    Raises
    ------
    InputError
        If the folder holds no log, or one of predicted schedules.
    """
    for name in (LogInfo.file_name, RECORDS):
        if not (directory / name).is_file():
            raise InputError(f"{directory} holds no tuning log: {name} is missing")
    info = LogInfo.read(directory)
    if info.predicted:
        raise InputError(
            f"{directory} holds predicted schedules, which nobody measured: take the log of a run "
            "that measured them"
        )
    return info


class ReadLogs(Job):
    """Reads logs, which others may have made: they can crash TVM."""

    advice: ClassVar[str] = ADVICE
    paths: list[str]

    def run(self) -> list[dict[str, Any]]:
        return [self._read(Path(path)) for path in self.paths]

    def _read(self, path: Path) -> dict[str, Any]:
        at(f"TVM was reading {path}")
        modules: dict[str, str] = {}
        trials = []
        for record in read_database(path).get_all_tuning_records():
            if record.run_secs:
                digest, trial = workload_hash(record.workload.mod), Trial.from_record(record)
                modules[digest] = modules.get(digest) or tvm.ir.save_json(record.workload.mod)
                trials.append([digest, trial.key, trial.run_s])
        return {"modules": modules, "trials": trials}


def difference_of(expected: LogInfo, found: LogInfo) -> str:
    """Why two logs' times are not comparable, in a few words; empty if they are."""
    for key in ("machine", "target", "threads", "tvm", "measuring"):
        ours, theirs = getattr(expected, key), getattr(found, key)
        if ours != theirs and key == "measuring":
            return "its kernels were measured in another way, by another version of fewtune"
        if ours != theirs:
            return f"its {key} is {theirs}, not {ours}"
    return ""
