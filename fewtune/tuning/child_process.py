"""Run measuring work in a process of its own, so that a crash of TVM costs one task.

Searching and applying traces can end in a segmentation fault (apache/tvm #17934, #13399), or in an
exception. The work therefore runs in a child that journals each task it begins. When a signal or an
exception ends the child, the task that it had begun is left out, and another child resumes from the
journal.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from fewtune import errors
from fewtune.artifacts import Fingerprint, TaskInfo
from fewtune.errors import FewtuneError, JournalError
from fewtune.measure.device import device_of
from fewtune.process.child_python import (
    child_python,
    end_by_interrupts,
    end_with_parent,
    is_child_of,
    was_interrupted,
)
from fewtune.process.optional_steps import last_line
from fewtune.process.temporary import SESSION_PREFIX
from fewtune.progress.progress import Progress
from fewtune.runtime.tvm import module_of, tvm
from fewtune.storage.journal import Journal
from fewtune.task.extract import Task
from fewtune.tuning.job import Work
from fewtune.tuning.task_state import crash_text
from fewtune.workers.fork_server import ForkServer

_ERROR = "error.json"


def journal_path(directory: Path, header: dict[str, Any]) -> Path:
    """The journal of a header: work that differs has another file."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()[:16]
    return directory / f"{digest}.jsonl"


def supervise(work: Work) -> list[dict[str, Any]]:
    """Run work in child processes until one ends well; return the events of its journal.

    Raises
    ------
    FewtuneError
        What stopped the child, in one line.
    RuntimeError
        If an exception ended the child outside of any task.
    """
    path = journal_path(work.journal_directory, work.header)
    with tempfile.TemporaryDirectory(prefix=SESSION_PREFIX) as scratch:
        file = Path(scratch) / "job.json"
        described = {
            "work": work.function,
            "job": work.job,
            "tasks": [
                [task.info.model_dump(mode="json"), tvm.ir.save_json(task.mod)]
                for task in work.tasks
            ],
            "fingerprint": work.fingerprint.model_dump(mode="json"),
            "journal": str(path),
            "header": work.header,
            "progress": str(work.progress_path) if work.progress_path else None,
        }
        file.write_text(json.dumps(described))
        while (code := _run(file)) != 0:
            if was_interrupted(code):
                raise KeyboardInterrupt
            ended_by = signal.Signals(-code).name if code < 0 else _exception(file, code)
            journal = Journal(path, work.header)
            try:
                task = lay_crash(journal, ended_by)
            except JournalError:
                if code < 0:
                    raise
                raise _unforeseen(code) from None
            finally:
                journal.close()
            print(f"{task} is left out: {crash_text(ended_by)}", flush=True)
    journal = Journal(path, work.header)
    journal.close()
    return journal.events


def lay_crash(journal: Journal, ended_by: str) -> str:
    """Journal a crash as the fault of the task begun last; return its name.

    Parameters
    ----------
    journal : Journal
    ended_by : str
        The name of a signal, or an exception in a line.

    Raises
    ------
    JournalError
        If no task was begun since the last crash: then no task is at fault.
    """
    kinds = [(event["kind"], event.get("task")) for event in journal.events]
    begun = [task for kind, task in kinds if kind == "start"]
    if not begun or ("crash", begun[-1]) in kinds:
        raise JournalError(
            f"tuning died ({ended_by}) outside of any task; run again with "
            "FEWTUNE_WORKER_STDERR=1 to see what TVM says"
        )
    journal.append({"kind": "crash", "task": begun[-1], "signal": ended_by})
    return str(begun[-1])


def _run(file: Path) -> int:
    command = [child_python(), "-m", "fewtune.tuning.child_process", str(file), str(os.getpid())]
    # NumPy's matrices are small here, and workers compile on all cores. In a profile of sharing
    # SqueezeNet, solving for at most 180 unknowns took 76 ms with several threads, 0.4 ms with one.
    child = subprocess.Popen(command, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
    try:
        return child.wait()
    except BaseException:
        child.terminate()
        child.wait()
        raise


def _exception(file: Path, code: int) -> str:
    """The exception that ended the child, in a line; raises an error that it reported."""
    report = file.with_name(_ERROR)
    if not report.exists():
        raise _unforeseen(code)
    kind, message = json.loads(report.read_text())
    # The next child reports its own.
    report.unlink()
    if hasattr(errors, kind):
        raise getattr(errors, kind)(message)
    return f"{kind}: {message}"


def _unforeseen(code: int) -> RuntimeError:
    return RuntimeError(f"the tuning process ended with exit code {code}; see its traceback")


def _report(file: Path, fault: Exception) -> int:
    """Report an error of this software, or an exception that nobody foresaw; the exit code."""
    is_error = isinstance(fault, FewtuneError)
    if not is_error:
        traceback.print_exception(fault)
    message = str(fault) if is_error else last_line(fault)
    file.with_name(_ERROR).write_text(json.dumps([type(fault).__name__, message]))
    return fault.exit_code if isinstance(fault, FewtuneError) else 1


def _main(file: Path, parent: int) -> int:
    end_by_interrupts()
    # The child never outlives the stage that started it, which may have ended while this loaded.
    end_with_parent()
    if not is_child_of(parent):
        return 1
    # Temporary files go where the stage removes them, however this process ends.
    tempfile.tempdir = str(file.parent)
    # Before anything else is loaded: forks inherit the state of this process.
    fork_server = ForkServer()
    described = json.loads(file.read_text())
    tasks = [
        Task(TaskInfo.model_validate(info), module_of(text)) for info, text in described["tasks"]
    ]
    progress = Progress(Path(described["progress"]) if described["progress"] else None)
    try:
        device = device_of(Fingerprint.model_validate(described["fingerprint"]))
        journal = Journal(Path(described["journal"]), described["header"])
        with device.open(fork_server) as pool:
            resolve_name(described["work"])(
                described["job"],
                tasks,
                device.fingerprint.target,
                journal,
                progress,
                pool,
                device,
            )
    except Exception as fault:  # noqa: BLE001 (TVM fails in many ways, on single tasks)
        if isinstance(fault, OSError) and fault.errno in errors.MACHINES_FAULT:
            fault = errors.MachineError(errors.disk_line(fault))
        return _report(file, fault)
    finally:
        progress.close()
    return 0


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1]), int(sys.argv[2])))
