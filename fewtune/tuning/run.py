"""Run a tuning session in a process of its own, so that a crash of TVM costs one task."""

from __future__ import annotations

import ctypes
import hashlib
import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from fewtune import errors
from fewtune.artifacts import Curve, Fingerprint, Selection, TaskInfo, TuneReport
from fewtune.errors import FewtuneError
from fewtune.machine import target_from_json
from fewtune.task.extract import Task
from fewtune.tuning.journal import Journal
from fewtune.tuning.log import write_database
from fewtune.tuning.options import TuneOptions
from fewtune.tuning.pool import WorkerPool
from fewtune.tuning.progress import Progress
from fewtune.tuning.session import Session, lay_crash
from fewtune.tuning.state import RunState
from fewtune.tvm_runtime import tvm

# A resumed run may have another budget, but not another search: the rest must be equal.
_BUDGET = {"trials_per_task", "budget_s", "early_stopping_trials"}


def journal_header(
    fingerprint: Fingerprint, tasks: list[Task], tuned: list[str], options: TuneOptions
) -> dict[str, Any]:
    """What the trials of a journal depend on."""
    return {
        "machine": fingerprint.identity(),
        "target": fingerprint.target,
        "tvm": fingerprint.versions.get("apache-tvm", ""),
        "workloads": {task.info.name: task.info.workload for task in tasks},
        "tuned": sorted(tuned),
        "search": options.model_dump(mode="json", exclude=_BUDGET),
    }


def journal_path(directory: Path, header: dict[str, Any]) -> Path:
    """Where the journal of this header stands: another search has another file."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()[:16]
    return directory / f"{digest}.jsonl"


def run_session(
    tasks: list[Task],
    tuned: list[str],
    fingerprint: Fingerprint,
    options: TuneOptions,
    journal_directory: Path,
    progress_path: Path | None = None,
) -> RunState:
    """Tune ``tuned`` in a child process; resume from the journal if there is one.

    Returns
    -------
    state : RunState
        Everything measured. The journal stays; `forget_journal` removes it once the result is
        safe elsewhere.

    Raises
    ------
    FewtuneError
        What stopped the child, in one line.
    """
    header = journal_header(fingerprint, tasks, tuned, options)
    path = journal_path(journal_directory, header)
    with tempfile.TemporaryDirectory(prefix="fewtune-") as scratch:
        job = Path(scratch) / "job.json"
        job.write_text(
            json.dumps(
                {
                    "tasks": [
                        [task.info.model_dump(mode="json"), tvm.ir.save_json(task.mod)]
                        for task in tasks
                    ],
                    "tuned": tuned,
                    "target": fingerprint.target,
                    "threads": fingerprint.threads,
                    "options": options.model_dump(mode="json"),
                    "journal": str(path),
                    "header": header,
                    "progress": str(progress_path) if progress_path else None,
                }
            )
        )
        while (code := _run_child(job)) != 0:
            if code > 0:
                raise _child_error(job, code)
            journal = Journal(path, header)
            task = lay_crash(journal, signal.Signals(-code).name)
            journal.close()
            print(f"TVM died of {signal.Signals(-code).name} in {task}: it is left out", flush=True)
    journal = Journal(path, header)
    journal.close()
    state = RunState(tasks, tuned)
    state.replay(journal.events)
    return state


def tune(
    tasks: list[Task],
    selection: Selection,
    fingerprint: Fingerprint,
    options: TuneOptions,
    journal_directory: Path,
    directory: Path,
    progress_path: Path | None = None,
) -> TuneReport:
    """Tune the representatives of a selection and write the tuning log into ``directory``.

    Parameters
    ----------
    tasks : list of Task
        The model's tasks.
    selection : Selection
    fingerprint : Fingerprint
    options : TuneOptions
    journal_directory : Path
        Scratch that outlives a kill.
    directory : Path
        Gets ``tune.json``, ``curve.json`` and TVM's two database files.
    progress_path : Path, optional
        File that holds where the run stands.

    Raises
    ------
    FewtuneError
        As `run_session`.
    """
    tuned = selection.representatives
    needed = {*tuned, *selection.dependents}
    kept = [task for task in tasks if task.info.name in needed]
    state = run_session(kept, tuned, fingerprint, options, journal_directory, progress_path)
    write_log(directory, state, fingerprint)
    reports = [state.tasks[name].report() for name in sorted(state.tasks)]
    report = TuneReport(
        model=selection.model,
        strategy=selection.strategy,
        tasks=[line for line in reports if line.task in tuned],
        defaults_ms={line.task: line.default_ms for line in reports},
        trials=state.trials,
        tuning_s=round(state.elapsed_s, 3),
        search_s=round(state.phases.search_s, 3),
        build_s=round(state.phases.build_s, 3),
        run_s=round(state.phases.run_s, 3),
        model_update_s=round(state.phases.model_update_s, 3),
        stopped_by=state.stopped_by or "trials",
    )
    report.write(directory)
    return report


def write_log(directory: Path, state: RunState, fingerprint: Fingerprint) -> None:
    """Write a run's valid trials as TVM's JSON database, and its curve."""
    write_database(
        directory,
        {name: known.task.mod for name, known in state.tasks.items()},
        {name: known.ranked() for name, known in state.tasks.items()},
        target_from_json(fingerprint.target),
    )
    Curve(points=state.curve).write(directory)


def _run_child(job: Path) -> int:
    child = subprocess.Popen([sys.executable, "-m", "fewtune.tuning.run", str(job)])
    try:
        return child.wait()
    except BaseException:
        child.terminate()
        child.wait()
        raise


def _child_error(job: Path, code: int) -> Exception:
    told = job.with_name("error.json")
    if not told.exists():
        return RuntimeError(f"the tuning process ended with exit code {code}; see its traceback")
    kind, message = json.loads(told.read_text())
    return getattr(errors, kind)(message)


def _main(job_path: Path) -> int:
    # A tuning process never outlives the stage that started it (PR_SET_PDEATHSIG is 1).
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    job = json.loads(job_path.read_text())
    tasks = [
        Task(TaskInfo.model_validate(info), tvm.ir.load_json(text)) for info, text in job["tasks"]
    ]
    progress = Progress(Path(job["progress"]) if job["progress"] else None)
    try:
        journal = Journal(Path(job["journal"]), job["header"])
        with WorkerPool(job["target"], job["threads"], job["threads"]) as pool:
            Session(
                tasks,
                job["tuned"],
                target_from_json(job["target"]),
                job["threads"],
                TuneOptions.model_validate(job["options"]),
                journal,
                progress,
                pool,
            ).run()
    except FewtuneError as error:
        job_path.with_name("error.json").write_text(
            json.dumps([type(error).__name__, str(error)])
        )
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1])))
