"""The steps from a registered model to its measured library."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewtune import artifacts
from fewtune.artifacts import Fingerprint, Selection, SelectionTiming, ShareReport, TuneReport
from fewtune.bank.bank import Bank
from fewtune.bank.build import build_bank
from fewtune.benchmark.benchmark import benchmark_model
from fewtune.benchmark.builds import Builds, has_room
from fewtune.compile.compile_apart import compile_apart
from fewtune.fleet.runner import runner_of
from fewtune.machine.device_lock import device_lock, device_name
from fewtune.model.call_graph import make_skeleton
from fewtune.model.import_apart import import_apart
from fewtune.model.import_model import read_lowered
from fewtune.oneshot.predict_apart import PredictJob, predict_apart
from fewtune.oneshot.write import empty_report
from fewtune.runtime.target import has_own_device, target_from_json
from fewtune.runtime.tvm import tvm
from fewtune.selection.select import select_tasks
from fewtune.sharing.share import share_schedules
from fewtune.steps.kept_steps import KeptSteps, digests
from fewtune.task.extract import extract_tasks, read_tasks, write_modules
from fewtune.tuning.tune import tune as tune_tasks
from fewtune.util.files import write_text

NAME = "model"


@dataclass(frozen=True)
class ModelSteps:
    """The steps of one call; each writes its own folder.

    Attributes
    ----------
    folder : Path
        The result's folder; the model is registered below it.
    fingerprint : Fingerprint
    options : dict
        The options of every step, by its section.
    strategy : str
    """

    folder: Path
    fingerprint: Fingerprint
    options: dict[str, Any]
    strategy: str

    @property
    def target(self) -> tvm.target.Target:
        """What the model is compiled for."""
        return target_from_json(self.fingerprint.target)

    @property
    def journals(self) -> Path:
        """The folder of journals, from which a killed call resumes."""
        return self.folder / "journals"

    def run(self, steps: KeptSteps) -> Path:
        """Run every step that was not done, and return the library's path."""
        built: list[Builds] = []
        library = self.library(steps, lambda: built.extend(self._builds()))
        steps.run(
            "benchmark",
            self.options["benchmark"],
            self.folder / "benchmark",
            lambda scratch: self._benchmark(scratch, built.pop() if built else None),
        )
        return library

    def library(self, steps: KeptSteps, meanwhile: Callable[[], object] | None = None) -> Path:
        """Run the steps up to the compiled library, and return its path.

        Parameters
        ----------
        steps : KeptSteps
        meanwhile : callable, optional
            Called while another process compiles the library, if that is not done.
        """
        steps.run("fingerprint", None, self.folder / "fingerprint", self.fingerprint.write)
        steps.run(
            "import",
            self.options["import_model"],
            self.folder / "import",
            lambda scratch: import_apart(
                NAME,
                self.folder / "models",
                self.fingerprint.target,
                self.fingerprint.threads,
                self.options["import_model"],
                scratch,
            ),
        )
        steps.run("tasks", None, self.folder / "tasks", self._extract)
        bank = self.options["build_bank"]
        steps.depend(*(digests(Path(bank.logs)) if bank.logs is not None else ()))
        steps.run(
            "bank", bank, self.folder / "bank", lambda it: build_bank(bank, self.fingerprint, it)
        )
        steps.run("select", self.options["select_tasks"], self.folder / "select", self._select)
        steps.run("tune", self.options["tune"], self.folder / "tune", self._tune)
        steps.run("share", self.options["share_schedules"], self.folder / "share", self._share)
        # Journals are for a call that was killed; their results are safe now.
        shutil.rmtree(self.journals, ignore_errors=True)
        steps.run(
            "compile",
            self.options["compile"],
            self.folder / "compile",
            lambda scratch: self._compile(scratch, meanwhile),
        )
        return (
            self.folder / "compile" / artifacts.CompileReport.read(self.folder / "compile").library
        )

    def _measuring(self, step: str, *, by_fleet: bool = False) -> Any:
        # A fleet's machines hold their own devices, batch by batch.
        if by_fleet and self.fingerprint.is_fleet:
            return nullcontext()
        return device_lock(device_name(self.fingerprint), f"{step} {self.folder}")

    def _extract(self, scratch: Path) -> None:
        lowered = read_lowered(self.folder / "import")
        tasks = extract_tasks(lowered, self.target)
        infos = [task.info for task in tasks]
        table = artifacts.TaskTable(model=NAME, target=self.fingerprint.target, tasks=infos)
        table.write(scratch)
        write_modules(tasks, scratch)
        inputs = artifacts.ImportReport.read(self.folder / "import").inputs
        try:
            make_skeleton(lowered, inputs).write(scratch)
        except Exception:  # noqa: BLE001 (tasks can be tuned whatever TVM raises)
            write_text(scratch / "no_finals", "the model could not be made of its kernels\n")

    def _select(self, scratch: Path) -> None:
        began_s = time.perf_counter()
        bank = Bank.read(self.folder / "bank")
        selection, _ = select_tasks(
            read_tasks(self.folder / "tasks"),
            self.options["select_tasks"],
            target=self.target,
            model=NAME,
            strategy=self.strategy,
            bank=bank,
        )
        selection.write(scratch)
        SelectionTiming(selecting_s=round(time.perf_counter() - began_s, 3)).write(scratch)

    def _tune(self, scratch: Path) -> None:
        selection = Selection.read(self.folder / "select")
        if self.options["tune"].predicts(selection.method):
            empty_report(selection, self.fingerprint, self.options["tune"], scratch)
            return
        with self._measuring("tune", by_fleet=True):
            tune_tasks(
                read_tasks(self.folder / "tasks"),
                selection,
                self.fingerprint,
                self.options["tune"],
                self.journals / "tune",
                scratch,
                run=runner_of(self.fingerprint),
            )

    def _share(self, scratch: Path) -> None:
        if TuneReport.read(self.folder / "tune").is_predicted:
            job = PredictJob(
                self.folder / "tasks",
                self.folder / "select",
                self.folder / "fingerprint",
                self.options["share_schedules"],
                scratch,
                bank_directory=self.folder / "bank",
            )
            predict_apart(job)
            return
        with self._measuring("share schedules of", by_fleet=True):
            share_schedules(
                read_tasks(self.folder / "tasks"),
                Selection.read(self.folder / "select"),
                self.folder / "tune",
                self.fingerprint,
                self.options["share_schedules"],
                self.journals / "share",
                scratch,
                bank_directory=self.folder / "bank",
                model_directory=self.folder / "tasks",
                run=runner_of(self.fingerprint),
            )

    def _builds(self) -> list[Builds]:
        """What the benchmark builds beside the library; none if it shall do that itself."""
        imported = self.folder / "import"
        if self.fingerprint.is_board or has_own_device(self.target) or not has_room(imported):
            return []
        tasks = artifacts.TaskTable.read(self.folder / "tasks").tasks
        try:
            return [Builds.of(imported, tasks, self.fingerprint)]
        except Exception:  # noqa: BLE001 (the benchmark tries again, and reports it)
            return []

    def _compile(self, scratch: Path, meanwhile: Callable[[], object] | None = None) -> None:
        compile_apart(
            self.folder / "import",
            self.folder / "tasks",
            self.folder / "share",
            self.folder / "fingerprint",
            self.options["compile"],
            scratch,
            model=NAME,
            strategy=self.strategy,
            meanwhile=meanwhile,
        )

    def _benchmark(self, scratch: Path, builds: Builds | None = None) -> None:
        with self._measuring("benchmark"):
            benchmark_model(
                self.folder / "import",
                read_tasks(self.folder / "tasks"),
                Selection.read(self.folder / "select"),
                SelectionTiming.read(self.folder / "select").selecting_s,
                TuneReport.read(self.folder / "tune"),
                ShareReport.read(self.folder / "share"),
                self.folder / "compile",
                self.fingerprint,
                self.options["benchmark"],
                scratch,
                builds=builds,
            )
