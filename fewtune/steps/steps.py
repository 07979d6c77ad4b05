"""The steps from a registered model to its measured library, in one list.

Each has its own folder in a result, and runs again only if something that it depends on changes.
`dvc.yaml` has the same steps as stages (tests/steps/test_steps.py).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fewtune.artifacts import (
    Fingerprint,
    ImportReport,
    PredictReport,
    Selection,
    SelectionTiming,
    TaskTable,
    TuneReport,
)
from fewtune.bank.bank import Bank, build_bank
from fewtune.benchmark.benchmark import benchmark_model
from fewtune.benchmark.variants import Builds, has_room
from fewtune.compile.compile import CompileJob, compile_apart
from fewtune.machine.device_lock import device_lock
from fewtune.measure.device import device_of
from fewtune.model.call_graph import make_skeleton
from fewtune.model.import_model import ImportJob, import_apart, read_lowered
from fewtune.model_check.report import at_most_full
from fewtune.options import ImportOptions
from fewtune.prediction.predict import FIRST_LIBRARY, PredictJob, predict_apart
from fewtune.process.ending import is_asked_to_end
from fewtune.progress.progress import Steps
from fewtune.runtime.target import target_from_json
from fewtune.selection.select import select_tasks
from fewtune.sharing.share import share_schedules
from fewtune.task.extract import extract_tasks, read_tasks, write_tasks
from fewtune.tuning.tune import tune as tune_tasks
from fewtune.util.files import file_sha256, whole_directory, write_text

# The model's name within a result.
NAME = "model"


@dataclass(frozen=True)
class Run:
    """One run of the steps, or of those up to a last one, in the folder of a result.

    ``options`` are those of every stage, by its section (`fewtune.steps.steps`).
    """

    folder: Path
    fingerprint: Fingerprint
    options: dict[str, Any]
    strategy: str
    last: str = "benchmark"
    # What the benchmark needs besides the library, built while that is compiled.
    _builds: list[Builds] = field(default_factory=list)

    def place(self, stage: str) -> Path:
        """The folder of a step's output."""
        return self.folder / next(step.folder for step in STEPS if step.stage == stage)

    @property
    def journals(self) -> Path:
        """The folder of journals, from which a killed call resumes."""
        return self.folder / "journals"

    @contextmanager
    def measuring(self, what: str, by_fleet: bool = False, measures: bool = True) -> Iterator[None]:
        """Hold the device if it measures; a fleet's machines hold their own, batch by batch."""
        device = device_of(self.fingerprint)
        if not measures or (by_fleet and device.can.locks_itself):
            yield
            return
        with device_lock(device.lock, f"{what} {self.folder}"):
            yield

    def go(self) -> None:
        """Run every step that was not done since something changed that it depends on."""
        keys: dict[str, str] = {}
        for step in STEPS:
            options = self.options.get(step.stage)
            parts = [step.stage, "" if options is None else options.model_dump_json()]
            parts += [*step.reads(self), *(keys[stage] for stage in step.needs)]
            keys[step.stage] = hashlib.sha256("\n".join(parts).encode()).hexdigest()
            self._make(step, keys[step.stage])
            if step.stage == self.last:
                return

    def _make(self, step: Step, key: str) -> None:
        output, note = self.folder / step.folder, self.folder / "keys" / step.folder
        if output.is_dir() and note.is_file() and note.read_text() == key:
            return
        note.unlink(missing_ok=True)
        with whole_directory(output) as scratch:
            step.make(self, scratch)
        # An equal call goes on from what was interrupted.
        if not is_asked_to_end():
            write_text(note, key)


class Step(NamedTuple):
    """One step.

    Attributes
    ----------
    stage : str
        The stage of `dvc.yaml` that does the same; also the section of its options.
    folder : str
        Of its output.
    needs : tuple of str
        The steps whose output it reads.
    make : callable
        Takes the run, and a folder for the output.
    reads : callable
        Takes the run, and gives digests of what else it reads.
    """

    stage: str
    folder: str
    needs: tuple[str, ...]
    make: Callable[[Run, Path], object]
    reads: Callable[[Run], Iterable[str]]


# In their order: a step stands after those that it needs.
STEPS: list[Step] = []


def _step(
    stage: str, folder: str, needs: str, reads: Callable[[Run], Iterable[str]] = lambda _run: ()
) -> Callable[[Callable[[Run, Path], object]], Callable[[Run, Path], object]]:
    def added(make: Callable[[Run, Path], object]) -> Callable[[Run, Path], object]:
        STEPS.append(Step(stage, folder, tuple(needs.split()), make, reads))
        return make

    return added


def _digests(folder: Path | str | None) -> Iterator[str]:
    """The files of a folder, if it is given, by name and content."""
    folder = Path(folder or os.devnull)
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        yield json.dumps([str(file.relative_to(folder)), file_sha256(file)])


@_step("fingerprint", "fingerprint", "", lambda run: (run.fingerprint.identity(),))
def _fingerprint(run: Run, scratch: Path) -> None:
    run.fingerprint.write(scratch)


@_step("build_bank", "bank", "fingerprint", lambda run: _digests(run.options["build_bank"].logs))
def _build_bank(run: Run, scratch: Path) -> None:
    build_bank(run.options["build_bank"], run.fingerprint, scratch)


def _import_reads(run: Run) -> Iterator[str]:
    yield str(run.options["compile"].most_growth)
    yield from _digests(run.folder / "models" / NAME)


@_step("import_model", "import", "fingerprint", _import_reads)
def _import(run: Run, scratch: Path) -> None:
    most_growth = run.options["compile"].most_growth
    job = ImportJob(
        name=NAME,
        models=run.folder / "models",
        target=run.fingerprint.target,
        threads=run.fingerprint.threads,
        options=ImportOptions(**dict(run.options["import_model"]), most_growth=most_growth),
        directory=scratch,
    )
    with Steps("import") as tell:
        import_apart(job, tell)


@_step("extract_tasks", "tasks", "fingerprint import_model")
def _extract(run: Run, scratch: Path) -> None:
    imported, target = run.place("import_model"), run.fingerprint.target
    lowered = read_lowered(imported)
    tasks = extract_tasks(lowered)
    write_tasks(tasks, NAME, target, scratch)
    try:
        make_skeleton(lowered, ImportReport.read(imported).inputs).write(scratch)
    except Exception:  # noqa: BLE001 (tasks can be tuned whatever TVM raises)
        write_text(scratch / "no_finals", "the model could not be made of its kernels\n")


def _compile_job(run: Run, shared: Path, directory: Path) -> CompileJob:
    return CompileJob(
        imported=run.place("import_model"),
        tasks=run.place("extract_tasks"),
        shared=shared,
        fingerprint=run.place("fingerprint"),
        options=run.options["compile"],
        directory=directory,
        model=NAME,
        strategy=run.strategy,
    )


@_step("predict", "predict", "fingerprint build_bank import_model extract_tasks")
def _predict(run: Run, scratch: Path) -> None:
    predict_apart(
        PredictJob(
            tasks=run.place("extract_tasks"),
            fingerprint=run.place("fingerprint"),
            options=run.options["predict"],
            directory=scratch,
            model=NAME,
            strategy=run.strategy,
            bank=run.place("build_bank"),
        )
    )
    (scratch / FIRST_LIBRARY).mkdir()
    with Steps("first library") as tell:
        compile_apart(_compile_job(run, scratch, scratch / FIRST_LIBRARY), tell=tell)


@_step("select_tasks", "select", "build_bank extract_tasks predict")
def _select(run: Run, scratch: Path) -> None:
    began_s = time.perf_counter()
    selection, _ = select_tasks(
        read_tasks(run.place("extract_tasks")),
        run.options["select_tasks"],
        target=target_from_json(run.fingerprint.target),
        model=NAME,
        strategy=run.strategy,
        bank=Bank.read(run.place("build_bank")),
        predicted=PredictReport.read(run.place("predict")),
    )
    selection.write(scratch)
    SelectionTiming(selecting_s=round(time.perf_counter() - began_s, 3)).write(scratch)


@_step("tune", "tune", "fingerprint extract_tasks select_tasks")
def _tune(run: Run, scratch: Path) -> None:
    selection, options = Selection.read(run.place("select_tasks")), run.options["tune"]
    with run.measuring("tune", by_fleet=True, measures=not options.predicts(selection.method)):
        tune_tasks(
            read_tasks(run.place("extract_tasks")),
            selection,
            run.fingerprint,
            options,
            run.journals / "tune",
            scratch,
        )


@_step("share_schedules", "share", "fingerprint build_bank extract_tasks predict select_tasks tune")
def _share(run: Run, scratch: Path) -> None:
    tasks, selection = run.place("extract_tasks"), Selection.read(run.place("select_tasks"))
    tuned = TuneReport.read(run.place("tune"))
    with run.measuring("share schedules of", by_fleet=True, measures=not tuned.is_predicted):
        share_schedules(
            read_tasks(tasks),
            selection,
            run.place("predict"),
            run.place("tune"),
            run.fingerprint,
            at_most_full(run.options["share_schedules"], selection, tuned),
            run.journals / "share",
            scratch,
            bank_directory=run.place("build_bank"),
            model_directory=tasks,
        )


@_step("compile", "compile", "fingerprint import_model extract_tasks share_schedules")
def _compile(run: Run, scratch: Path) -> None:
    # Journals are for a call that was killed, or interrupted; else their results are safe now.
    if not is_asked_to_end():
        shutil.rmtree(run.journals, ignore_errors=True)

    def build() -> None:
        imported = run.place("import_model")
        if device_of(run.fingerprint).can.shared_cores and has_room(imported):
            tasks = TaskTable.read(run.place("extract_tasks")).tasks
            try:
                run._builds.append(Builds.of(imported, tasks, run.fingerprint))
            except Exception:  # noqa: BLE001 (the benchmark tries again, and reports it)
                return

    job = _compile_job(run, run.place("share_schedules"), scratch)
    with Steps("library") as tell:
        compile_apart(job, build if run.last == "benchmark" else None, tell)


@_step(
    "benchmark",
    "benchmark",
    "fingerprint import_model extract_tasks predict select_tasks tune share_schedules compile",
)
def _benchmark(run: Run, scratch: Path) -> None:
    with run.measuring("benchmark"):
        benchmark_model(
            {step.stage: run.place(step.stage) for step in STEPS},
            run.fingerprint,
            run.options["benchmark"],
            scratch,
            builds=run._builds.pop() if run._builds else None,
        )
