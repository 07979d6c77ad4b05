"""Measuring work, and the process that does it, so that a crash of TVM costs one task.

Searching and applying traces can end in a segmentation fault (apache/tvm #17934, #13399), or in an
exception. The work therefore runs in a child that journals each task it begins. When a signal or an
exception ends the child, the task that it had begun is left out, and another child resumes from the
journal.
"""

from __future__ import annotations

import json
import signal
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict, SkipValidation

from fewtune.artifacts import Fingerprint, TaskInfo, text_sha256
from fewtune.errors import JournalError, Terminated
from fewtune.measure.device import device_of
from fewtune.options import TuneOptions
from fewtune.predictor import chosen_digest
from fewtune.process.apart import Child, CrashedError, Job, JobFailedError
from fewtune.process.ending import ask_to_end
from fewtune.process.warm import warm_process
from fewtune.progress.progress import Progress
from fewtune.runtime.tvm import module_of, tvm
from fewtune.storage.journal import Journal
from fewtune.task.extract import Task
from fewtune.timing.timer import MEASURING
from fewtune.tuning.state import RunState, Start, crash_text
from fewtune.workers.pool import WorkerPool

# A resumed run may have another budget. All other options must be equal.
BUDGET = {"trials_per_task", "budget_s", "least_gain", "start_from"}


@dataclass(frozen=True)
class Workplace:
    """What a session works with: its journal, and the processes that measure."""

    journal: Journal
    progress: Progress
    pool: WorkerPool


class SessionJob(Job):
    """A session's arguments.

    Attributes
    ----------
    tasks : list of tuple
        Descriptions, and modules as TVM's JSON.
    fingerprint : Fingerprint
    options : TuneOptions
    starts : dict of Start
        By task.
    cold_weights : bool
        Whether measured calls find their weights in memory (`fewtune.timing.timer`).
    journals : Path
        A folder that outlives a kill.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    shows_output: ClassVar[bool] = True
    # NumPy's matrices are small here, and workers compile on all cores. In a profile of sharing
    # SqueezeNet, solving for at most 180 unknowns took 76 ms with several threads, 0.4 ms with one.
    environment: ClassVar[dict[str, str]] = {"OPENBLAS_NUM_THREADS": "1"}

    tasks: SkipValidation[list[tuple[TaskInfo, str]]]
    fingerprint: Fingerprint
    options: TuneOptions
    starts: SkipValidation[dict[str, Start]] = {}
    cold_weights: bool = False
    journals: Path

    @property
    def header(self) -> dict[str, Any]:
        """What the journal's trials depend on; the journal is named after it."""
        return {
            "machine": self.fingerprint.identity(),
            "target": self.fingerprint.target,
            "tvm": self.fingerprint.versions.get("apache-tvm", ""),
            "workloads": {info.name: info.workload for info, _ in self.tasks},
            "measuring": MEASURING,
            "cold_weights": self.cold_weights,
            "options": self.options.model_dump(mode="json", exclude=BUDGET),
            "predictor": chosen_digest(self.options.predictor),
            "starts": text_sha256(repr(sorted(self.starts.items())))[:16],
        }

    def opened(self) -> closing[Journal]:
        """The journal, which is closed when the block ends; other work has another file."""
        header = self.header
        digest = text_sha256(json.dumps(header, sort_keys=True))[:16]
        return closing(Journal(self.journals / f"{digest}.jsonl", header))

    def run(self) -> None:
        """Hold the session in this process, with its journal in a file."""
        with self.opened() as journal:
            self.hold(journal, Progress())

    def hold(self, journal: Journal, progress: Progress) -> None:
        """Hold the session."""
        with device_of(self.fingerprint).open() as pool:
            self.measure(Workplace(journal, progress, pool))

    def unpacked(self) -> list[Task]:
        """The tasks."""
        return [Task(info, module_of(text)) for info, text in self.tasks]

    @property
    def total_trials(self) -> int | None:
        """Trials that the budget allows, if it counts them."""
        return None

    def measure(self, place: Workplace) -> object:
        """Hold the session with what it needs."""
        raise NotImplementedError


def packed(tasks: list[Task]) -> list[tuple[TaskInfo, str]]:
    """Tasks as they are sent to another process."""
    return [(task.info, tvm.ir.save_json(task.mod)) for task in tasks]


def measured(job: SessionJob, tasks: list[Task]) -> RunState:
    """Have a session measure its tasks, and return what came of it.

    The journal stays: the caller removes it once the result is written.

    Parameters
    ----------
    job : SessionJob
    tasks : list of Task
        Of the job.

    Raises
    ------
    FewtuneError
        What stopped the measuring, in one line.
    """
    run = device_of(job.fingerprint).runner or supervise
    return RunState(tasks, job.starts, run(job) if job.tasks else ())


def supervise(job: SessionJob) -> list[dict[str, Any]]:
    """Run a job in child processes until one ends well; return the events of its journal.

    Raises
    ------
    FewtuneError
        What stopped the child, in one line.
    JobFailedError
        If an exception ended the child outside of any task.
    """
    # Forked, workers are ready in a fraction of the time that loading TVM takes.
    is_for_cpu = device_of(job.fingerprint).can.shared_cores
    with warm_process(["fewtune.workers.worker"], is_for_cpu=is_for_cpu):
        try:
            while not _is_done(job):
                pass
        except KeyboardInterrupt as interrupt:
            # The batch under way is lost, and all before it is kept.
            if isinstance(interrupt, Terminated) or not ask_to_end():
                raise
            with job.opened() as journal:
                journal.append({"kind": "finish", "stopped_by": "interrupted"})
    with job.opened() as journal:
        return journal.events


def _is_done(job: SessionJob) -> bool:
    """Run a job in a child; False if a task crashed it, which the next child leaves out."""
    try:
        with Child(job) as child:
            child.result()
            return True
    except JobFailedError as failed:
        ended_by = failed.line
        if not (task := lay_crash(job, ended_by)):
            raise
    except CrashedError as crash:
        ended_by = signal.Signals(-crash.code).name
        if not (task := lay_crash(job, ended_by)):
            raise JournalError(
                f"tuning died ({ended_by}) outside of any task; run again with "
                "FEWTUNE_WORKER_STDERR=1 to see what TVM says"
            ) from None
    print(f"{task} is left out: {crash_text(ended_by)}", flush=True)
    return False


def lay_crash(job: SessionJob, ended_by: str) -> str:
    """Journal a crash as the fault of the task begun last; return its name.

    It is empty if no task was begun since the last crash: then no task is at fault.

    Parameters
    ----------
    job : SessionJob
    ended_by : str
        The name of a signal, or an exception in a line.
    """
    with job.opened() as journal:
        kinds = [(event["kind"], event.get("task")) for event in journal.events]
        begun = [task for kind, task in kinds if kind == "start"]
        if not begun or ("crash", begun[-1]) in kinds:
            return ""
        journal.append({"kind": "crash", "task": begun[-1], "signal": ended_by})
        return str(begun[-1])
