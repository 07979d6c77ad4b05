"""The tiny convolutional model, imported, extracted and tuned a little: once a test run."""

import atexit
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from fewtune.artifacts import (
    Cluster,
    CompileReport,
    Fingerprint,
    ImportReport,
    Selection,
    ShareReport,
)
from fewtune.bank.bank import build_bank
from fewtune.compile.compile import CompileJob, compile_model
from fewtune.machine.fingerprint import FingerprintOptions, detect_fingerprint
from fewtune.model.call_graph import make_skeleton
from fewtune.model.import_model import imported_model, read_lowered
from fewtune.model.source import add_model
from fewtune.options import (
    BankOptions,
    CompileOptions,
    ImportOptions,
    PredictOptions,
    ShareOptions,
    TuneOptions,
)
from fewtune.prediction.predict import PredictJob, predict_apart
from fewtune.progress.progress import Progress
from fewtune.runtime.target import target_from_json
from fewtune.runtime.tvm import set_threads, tvm, usable_cores
from fewtune.sharing.share import share_schedules
from fewtune.storage.database import merge
from fewtune.task.extract import Task, extract_tasks, write_tasks
from fewtune.tuning.job import SessionJob
from fewtune.tuning.state import TaskState
from fewtune.tuning.tune import tune
from fewtune.workers.pool import WorkerPool
from tests.tiny_models import tiny_convolutional_model, write_model

NAME = "tiny"
OPTIONS = TuneOptions(trials_per_task=6, batch_size=3, least_gain=0.0)


@cache
def scratch() -> Path:
    """A folder that goes when the tests end."""
    path = Path(tempfile.mkdtemp(prefix="fewtune-tests-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@cache
def fingerprint() -> Fingerprint:
    return detect_fingerprint(FingerprintOptions())


@cache
def machine() -> Path:
    """The folder of the fingerprint stage, with a bank of nothing."""
    directory = scratch() / "machine"
    directory.mkdir()
    fingerprint().write(directory)
    build_bank(BankOptions(), fingerprint(), directory)
    return directory


@cache
def target() -> tvm.target.Target:
    return target_from_json(fingerprint().target)


@cache
def imported() -> Path:
    """The folder of the import stage."""
    directory = scratch() / "import"
    directory.mkdir()
    file = write_model(tiny_convolutional_model(), scratch())
    add_model(str(file), scratch() / "models", NAME)
    given = target(), fingerprint().threads, ImportOptions()
    imported_model(NAME, scratch() / "models", *given).write(directory)
    return directory


@cache
def lowered() -> tvm.IRModule:
    return read_lowered(imported())


@cache
def tasks() -> list[Task]:
    return extract_tasks(lowered())


def convolutions() -> dict[str, Task]:
    """The model's four convolutions by what they are: ``a`` 3x3 of 3 channels, to ``d`` 1x1."""
    # By kernel height and input channels.
    letters = {(3, 3): "a", (3, 16): "b", (1, 16): "c", (1, 32): "d"}
    found = {}
    for task in tasks():
        if task.info.name.startswith("fused_conv2d"):
            height, _, channels, _ = task.info.shapes[1]
            found[letters[height, channels]] = task
    return found


@cache
def selection() -> Selection:
    """One representative, the convolution ``b``; ``a`` and ``c`` depend on it."""
    found = convolutions()
    names = {key: task.info.name for key, task in found.items()}
    return Selection(
        model=NAME,
        strategy="selective",
        method="cliques",
        clusters=[
            Cluster(
                representative=names["b"],
                members=[names["b"], names["a"], names["c"]],
            )
        ],
        worth=[names["b"]],
        set_aside=sorted({t.info.name for t in tasks()} - {names[k] for k in "abc"}),
    )


@cache
def pool() -> WorkerPool:
    """One real worker, for everything that is measured in this process."""
    workers = WorkerPool(fingerprint().target, fingerprint().threads, 1)
    atexit.register(workers.close)
    return workers


def job_of(
    kind: type[SessionJob], tasks: list[Task], journals: Path, options: TuneOptions, **more: Any
) -> SessionJob:
    """The work of a session on this machine."""
    given = {"fingerprint": fingerprint(), "journals": journals, "options": options, **more}
    return kind(tasks=tasks, **given)


def _here(job: SessionJob) -> list[dict[str, Any]]:
    """Stand in for `job.supervise`, without the seconds that a child takes."""
    with job.opened() as journal:
        job.session(job, journal, Progress(), pool()).run()
    with job.opened() as journal:
        return journal.events


@cache
def extracted() -> Path:
    """The folder of the extract_tasks stage, with the model's skeleton."""
    directory = scratch() / "tasks"
    directory.mkdir()
    write_tasks(tasks(), NAME, fingerprint().target, directory)
    inputs = ImportReport.read(imported()).inputs
    make_skeleton(lowered(), inputs).write(directory)
    return directory


def predict_job(directory: Path | None, options: PredictOptions) -> PredictJob:
    """The prediction of every task, into a new folder if one is given."""
    if directory is not None:
        directory.mkdir()
    return PredictJob(
        tasks=extracted(),
        fingerprint=machine(),
        options=options,
        bank=machine(),
        directory=directory or scratch(),
        model=NAME,
        strategy="selective",
    )


@cache
def predicted() -> Path:
    """What the predict stage writes, but for its library."""
    directory = scratch() / "predict"
    with mock.patch(
        "fewtune.prediction.predict.run_each_apart", lambda jobs: [job.run() for job in jobs]
    ):
        predict_apart(predict_job(directory, PredictOptions()), 1)
    set_threads(usable_cores())
    return directory


def share(
    directory: Path,
    journals: Path,
    options: ShareOptions,
    model: Path,
    **changed: Any,
) -> ShareReport:
    """Share what was predicted and tuned, in this process, into a new folder."""
    directory.mkdir()
    given: dict[str, Any] = {
        "tasks": tasks(),
        "selection": selection(),
        "predict_directory": predicted(),
        "tune_directory": tuned(),
        "fingerprint": fingerprint(),
        "options": options,
        "journal_directory": journals,
        "directory": directory,
        "bank_directory": Path(),
        "model_directory": model,
    }
    with in_this_process():
        return share_schedules(**{**given, **changed})


def bank(folder: Path) -> Path:
    """A new bank of one log, ``earlier``, of what was tuned."""
    logs, directory = folder / "logs", folder / "bank"
    (logs / "earlier").mkdir(parents=True)
    directory.mkdir()
    merge([tuned()], logs / "earlier")
    build_bank(BankOptions(logs=str(logs)), fingerprint(), directory)
    return directory


def one_round() -> AbstractContextManager[object]:
    """Within the block, each task has contenders once, whatever noise is taken for a gain."""

    def promised(states: Iterable[TaskState], *_: object) -> dict[str, float]:
        return {state.name: float(not state.gains) for state in states}

    return mock.patch("fewtune.sharing.session.promises", promised)


@contextmanager
def in_this_process() -> Iterator[None]:
    """Within the block, tuning and sharing do their work in this process."""
    with mock.patch("fewtune.tuning.job.supervise", _here):
        yield


@cache
def tuned() -> Path:
    """The folder of the tune stage, whose representative has a schedule faster than its default.

    On a busy machine each of six candidates may be slower; then the task is tuned once more.
    """
    for attempt in range(5):
        directory = scratch() / f"tune{attempt}"
        directory.mkdir()
        journals = scratch() / f"journals{attempt}"
        with in_this_process():
            report = tune(tasks(), selection(), fingerprint(), OPTIONS, journals, directory)
        if all(line.status == "tuned" for line in report.tasks):
            return directory
    raise AssertionError("in five tunings no candidate was faster than the default schedule")


def compiled_into(
    directory: Path, options: CompileOptions, left_out: dict[str, str] | None = None
) -> CompileReport:
    """Compile the model with what was tuned."""
    return compile_model(compile_job(tuned(), directory, options, left_out))


def compile_job(
    shared: Path,
    directory: Path,
    options: CompileOptions | None = None,
    left_out: dict[str, str] | None = None,
) -> CompileJob:
    """The compilation of a log of schedules into a folder."""
    return CompileJob(
        imported=imported(),
        tasks=extracted(),
        shared=shared,
        fingerprint=machine(),
        options=options or CompileOptions(),
        directory=directory,
        model=NAME,
        strategy="selective",
        left_out=left_out or {},
    )


@cache
def compiled() -> Path:
    """What the compile stage writes."""
    directory = scratch() / "compile"
    directory.mkdir()
    report = compiled_into(directory, CompileOptions())
    assert CompileReport.read(directory) == report
    return directory
