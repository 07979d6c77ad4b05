"""Measuring work, and the process that does it, so that a crash of TVM costs one task.

Searching and applying traces can end in a segmentation fault (apache/tvm #17934, #13399), or in an
exception. The work therefore runs in a child that journals each task it begins. When a signal or an
exception ends the child, the task that it had begun is left out, and another child resumes from the
journal.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict, SkipValidation, TypeAdapter

from fewtune.artifacts import Fingerprint, StoppedBy, failures_by_cause, text_sha256
from fewtune.errors import JournalError, Terminated
from fewtune.measure.device import device_of
from fewtune.options import TuneOptions
from fewtune.predictor import chosen_digest
from fewtune.process.apart import Child, CrashedError, Job, JobFailedError
from fewtune.process.ending import ask_to_end
from fewtune.process.warm import warm_process
from fewtune.progress.progress import Progress, Snapshot
from fewtune.storage.journal import Journal
from fewtune.task.extract import Task
from fewtune.tuning.state import Event, RunState, Start, crash_text, in_ms

# A resumed run may have another budget. All other options must be equal.
BUDGET = {"trials_per_task", "budget_s", "least_gain", "start_from"}


class SessionJob(Job):
    """A session's arguments.

    Attributes
    ----------
    tasks : list of Task
    fingerprint : Fingerprint
    options : TuneOptions
    starts : dict of Start
        By task.
    cold_weights : bool
        Whether the model's weights outgrow the caches.
    journals : Path
        A folder that outlives a kill.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    shows_output: ClassVar[bool] = True
    # Its class; it is made of the job, a journal, progress and processes that measure.
    session: ClassVar[Callable[..., Any]]
    # Shown in the progress.
    phase: ClassVar[str] = "tune"
    # NumPy's matrices are small here, and workers compile on all cores. In a profile of sharing
    # SqueezeNet, solving for at most 180 unknowns took 76 ms with several threads, 0.4 ms with one.
    environment: ClassVar[dict[str, str]] = {"OPENBLAS_NUM_THREADS": "1"}

    tasks: SkipValidation[list[Task]]
    fingerprint: Fingerprint
    options: TuneOptions
    starts: SkipValidation[dict[str, Start]] = {}
    cold_weights: bool = False
    journals: Path

    def opened(self) -> closing[Journal]:
        """The journal, which is closed when the block ends; other work has another file."""
        # What its trials depend on.
        header = {
            "machine": self.fingerprint.identity(),
            "target": self.fingerprint.target,
            "tvm": self.fingerprint.versions.get("apache-tvm", ""),
            "workloads": {task.info.name: task.info.workload for task in self.tasks},
            "cold_weights": self.cold_weights,
            "options": self.options.model_dump(mode="json", exclude=BUDGET),
            "predictor": chosen_digest(self.options.predictor),
            "starts": text_sha256(repr(sorted(self.starts.items())))[:16],
        }
        digest = text_sha256(json.dumps(header, sort_keys=True))[:16]
        return closing(Journal(self.journals / f"{digest}.jsonl", header))

    def run(self) -> None:
        """Hold the session in this process, with its journal in a file."""
        with self.opened() as journal:
            self.hold(journal, Progress())

    def hold(self, journal: Journal, progress: Progress) -> None:
        """Hold the session."""
        with device_of(self.fingerprint).open() as pool:
            self.session(self, journal, progress, pool).run()

    @property
    def total_trials(self) -> int:
        """As many as the options give each task, whichever gets them; 0: they are not counted."""
        return self.options.trials_per_task * len(self.tasks)

    def state(self, events: Iterable[Event]) -> RunState:
        """What came of the session so far, by the events of its journal.

        Raises
        ------
        JournalError
            If no session wrote them.
        """
        try:
            made = RunState(self.tasks, self.starts, events)
            # What can be reported, and read, can be gone on from.
            TypeAdapter(StoppedBy).validate_python(made.stopped_by)
            for each in made.tasks.values():
                each.report()
                [*map(json.loads, filter(None, [each.default_key, *each.finals_s]))]
        except Exception as fault:  # noqa: BLE001 (who changes a journal may break it in any way)
            raise JournalError(
                f"the journal in {self.journals} is not as it was written "
                f"({type(fault).__name__}): move it away to start anew"
            ) from None
        return made

    def snapshot(self, state: RunState, name: str) -> Snapshot:
        """Where the session stands after a batch of a task."""
        most, budget_s = self.total_trials or state.trials, self.options.budget_s
        left_s = state.elapsed_s / max(1, state.trials) * max(0, most - state.trials)
        if budget_s is not None:
            left_s = min(left_s, max(0.0, budget_s - state.elapsed_s))
        lines = {each.name: each.report() for each in state.tasks.values()}
        return Snapshot(
            phase=self.phase,
            task=name,
            detail=state.tasks[name].task.info.shapes_text,
            trials=state.trials,
            trials_total=most,
            default_ms=lines[name].default_ms,
            best_ms=lines[name].best_ms,
            estimated_latency_ms=in_ms(state.estimated_latency_s),
            elapsed_s=state.elapsed_s,
            left_s=left_s,
            failures=failures_by_cause([*lines.values()]),
        )


def measured(job: SessionJob) -> RunState:
    """Have a session measure its tasks, and return what came of it.

    The journal stays: the caller removes it once the result is written.

    Parameters
    ----------
    job : SessionJob

    Raises
    ------
    FewtuneError
        What stopped the measuring, in one line.
    """
    run = device_of(job.fingerprint).runner or supervise
    return job.state(run(job) if job.tasks else ())


def supervise(job: SessionJob) -> list[Event]:
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
    except (JobFailedError, CrashedError) as end:
        by = end.line if isinstance(end, JobFailedError) else signal.Signals(-end.code).name
        if task := lay_crash(job, by):
            print(f"{task} is left out: {crash_text(by)}", flush=True)
            return False
        if isinstance(end, JobFailedError):
            raise
        raise JournalError(
            f"tuning died ({by}) outside of any task; run again with FEWTUNE_WORKER_STDERR=1 to "
            "see what TVM says"
        ) from None


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
