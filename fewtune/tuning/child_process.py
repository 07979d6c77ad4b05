"""Run measuring work in a process of its own, so that a crash of TVM costs one task.

Searching and applying traces can end in a segmentation fault (apache/tvm #17934, #13399), or in an
exception. The work therefore runs in a child that journals each task it begins. When a signal or an
exception ends the child, the task that it had begun is left out, and another child resumes from the
journal.
"""

from __future__ import annotations

import hashlib
import json
import signal
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict, SkipValidation

from fewtune.artifacts import Fingerprint, TaskInfo
from fewtune.errors import JournalError, Terminated
from fewtune.measure.device import device_of
from fewtune.process.apart import Child, CrashedError, Job, JobFailedError
from fewtune.process.ending import ask_to_end
from fewtune.process.warm import warm_process
from fewtune.progress.progress import Progress
from fewtune.runtime.tvm import module_of, tvm
from fewtune.storage.journal import Journal
from fewtune.task.extract import Task
from fewtune.timing.timer import MEASURING
from fewtune.tuning.job import Runner, SessionJob, Work, Workplace
from fewtune.tuning.task_state import crash_text


def journal_path(directory: Path, header: dict[str, Any]) -> Path:
    """The journal of a header: work that differs has another file."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()[:16]
    return directory / f"{digest}.jsonl"


def packed(tasks: list[Task]) -> list[tuple[TaskInfo, str]]:
    """Tasks as they are sent to another process: descriptions, and modules as TVM JSON."""
    return [(task.info, tvm.ir.save_json(task.mod)) for task in tasks]


def measured(
    job: SessionJob,
    tasks: list[Task],
    fingerprint: Fingerprint,
    journal_directory: Path,
    run: Runner | None,
    **more: Any,
) -> list[dict[str, Any]]:
    """Have a job's session measure tasks, and return the events of its journal.

    Parameters
    ----------
    job : SessionJob
    tasks : list of Task
    fingerprint : Fingerprint
    journal_directory : Path
        Scratch that outlives a kill.
    run : callable, optional
        What carries the work out; `supervise` unless given.
    more
        What the trials depend on besides, as JSON values.

    Raises
    ------
    FewtuneError
        What stopped the measuring, in one line.
    """
    header = {
        "machine": fingerprint.identity(),
        "target": fingerprint.target,
        "tvm": fingerprint.versions.get("apache-tvm", ""),
        "workloads": {task.info.name: task.info.workload for task in tasks},
        "measuring": MEASURING,
        **more,
    }
    work = Work(job, tasks, fingerprint, header, journal_directory)
    return (run or supervise)(work) if tasks else []


class MeasuringJob(Job):
    """`Work`, as it is sent to the child."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    shows_output: ClassVar[bool] = True
    # NumPy's matrices are small here, and workers compile on all cores. In a profile of sharing
    # SqueezeNet, solving for at most 180 unknowns took 76 ms with several threads, 0.4 ms with one.
    environment: ClassVar[dict[str, str]] = {"OPENBLAS_NUM_THREADS": "1"}

    session: SkipValidation[SessionJob]
    tasks: list[tuple[TaskInfo, str]]
    fingerprint: Fingerprint
    header: dict[str, Any]
    journal: Path = Path()

    def run(self) -> None:
        """Hold the session in this process, with its journal in a file."""
        self.hold(Journal(self.journal, self.header), Progress())

    def hold(self, journal: Journal, progress: Progress) -> None:
        """Hold the session."""
        tasks = [Task(info, module_of(text)) for info, text in self.tasks]
        device = device_of(self.fingerprint)
        with device.open() as pool:
            self.session.run(Workplace(tasks, device.target, journal, progress, pool, device))


def supervise(work: Work) -> list[dict[str, Any]]:
    """Run work in child processes until one ends well; return the events of its journal.

    Raises
    ------
    FewtuneError
        What stopped the child, in one line.
    JobFailedError
        If an exception ended the child outside of any task.
    """
    path = journal_path(work.journal_directory, work.header)
    job = MeasuringJob(
        session=work.job,
        tasks=packed(work.tasks),
        fingerprint=work.fingerprint,
        journal=path,
        header=work.header,
    )
    # Forked, workers are ready in a fraction of the time that loading TVM takes.
    with warm_process(["fewtune.workers.worker"], is_for_cpu=device_of(work.fingerprint).is_cpu):
        try:
            while not _is_done(job):
                pass
        except KeyboardInterrupt as interrupt:
            # The batch under way is lost, and all before it is kept.
            if isinstance(interrupt, Terminated) or not ask_to_end():
                raise
            with closing(Journal(path, work.header)) as journal:
                journal.append({"kind": "finish", "stopped_by": "interrupted"})
    with closing(Journal(path, work.header)) as journal:
        return journal.events


def _is_done(job: MeasuringJob) -> bool:
    """Run a job in a child; False if a task crashed it, which the next child leaves out."""
    try:
        with Child(job) as child:
            child.result()
            return True
    except CrashedError as crash:
        fault: Exception = crash
        ended_by = signal.Signals(-crash.code).name
    except JobFailedError as failed:
        fault, ended_by = failed, failed.line
    journal = Journal(job.journal, job.header)
    try:
        task = lay_crash(journal, ended_by)
    except JournalError:
        if isinstance(fault, JobFailedError):
            raise fault from None
        raise
    finally:
        journal.close()
    print(f"{task} is left out: {crash_text(ended_by)}", flush=True)
    return False


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
