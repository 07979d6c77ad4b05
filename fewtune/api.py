"""What a notebook calls: tune a model and run the result, without DVC, Prefect or MLflow.

The steps are those of the pipeline's stages, by the same code. Each keeps what it wrote under
``out``, beside a key made of everything that it depends on: a second call with the same arguments
measures nothing, and one that was killed goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ValidationError

from fewtune import artifacts
from fewtune.artifacts import Fingerprint, Selection, SelectionTiming, ShareReport, TuneReport
from fewtune.bank.bank import Bank
from fewtune.bank.build import build_bank
from fewtune.bank.report import BankOptions
from fewtune.benchmark.benchmark import benchmark_model
from fewtune.benchmark.variants import BenchmarkOptions
from fewtune.compile.compile import CompileOptions
from fewtune.compile.compile_apart import compile_apart
from fewtune.errors import InputError
from fewtune.fleet.runner import runner_of
from fewtune.machine.device_lock import device_lock, device_name
from fewtune.machine.fingerprint import FingerprintOptions, detect_fingerprint
from fewtune.model.call_graph import make_skeleton
from fewtune.model.import_apart import import_apart
from fewtune.model.import_model import ImportOptions, read_lowered
from fewtune.model.source import add_model
from fewtune.model_check.check import check
from fewtune.model_check.report import CheckReport
from fewtune.oneshot.predict import empty_report, predict_schedules
from fewtune.options import PREDICT, ShareOptions, TuneOptions
from fewtune.runtime.executable import CompiledModel
from fewtune.runtime.target import target_from_json
from fewtune.runtime.tvm import set_threads
from fewtune.selection.select import SelectOptions, select_tasks
from fewtune.sharing.share import share_schedules
from fewtune.task.extract import extract_tasks, read_tasks, write_modules
from fewtune.tuning.tune import tune as tune_tasks
from fewtune.util.files import file_sha256, whole_directory, write_text

_NAME = "model"
_ONESHOT = "oneshot"
_STRATEGIES: dict[str, dict[str, Any]] = {
    "selective": {},
    "full": {"method": "all"},
    _ONESHOT: {"method": PREDICT},
}
_MODES = ("measure", PREDICT)
_SECTIONS: dict[str, type[BaseModel]] = {
    "import_model": ImportOptions,
    "select_tasks": SelectOptions,
    "build_bank": BankOptions,
    "tune": TuneOptions,
    "share_schedules": ShareOptions,
    "compile": CompileOptions,
    "benchmark": BenchmarkOptions,
}


@dataclass(frozen=True)
class TunedModel:
    """A tuned model: its library, and what was measured of it.

    Attributes
    ----------
    library : Path
        The exported library, to be loaded with `load` or with TVM's runtime alone.
    latency_ms, untuned_latency_ms, onnxruntime_latency_ms : float
        Medians of interleaved rounds on the same threads; onnxruntime's is None on a board.
    tuning_s : float
        Seconds of selecting, tuning and sharing.
    report : str
        The results table and the kernels, as markdown.
    directory : Path
        Everything that was written: a folder a step.
    """

    library: Path
    latency_ms: float
    untuned_latency_ms: float
    onnxruntime_latency_ms: float | None
    tuning_s: float
    report: str
    directory: Path

    def _repr_markdown_(self) -> str:
        """What a notebook shows."""
        return self.report


def tune(
    model: str | Path,
    shapes: Mapping[str, Sequence[int]] | None = None,
    *,
    dimensions: Mapping[str, int] | None = None,
    constants: Mapping[str, Any] | None = None,
    inputs: str | Path | None = None,
    trials: int | None = None,
    budget_s: float | None = None,
    strategy: str = "selective",
    mode: str = "measure",
    target: str = "auto",
    threads: int | None = None,
    device: str = "here",
    out: str | Path = "fewtune-out",
    seed: int = 0,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> TunedModel:
    """Tune an ONNX model for this machine.

    Parameters
    ----------
    model : str or Path
        An ``.onnx`` file, ``light:NAME`` or ``zoo:NAME``.
    shapes : mapping of str to sequence of int, optional
        Static shape of each input that has dynamic dimensions.
    dimensions : mapping of str to int, optional
        Size of each named dynamic dimension.
    constants : mapping, optional
        Input bound to a value: a number or nested lists; the tuned model has it no longer.
    inputs : str or Path, optional
        An ``.npz`` file of sample inputs, input name to array; outputs are compared on them, too.
    trials : int, optional
        Schedules measured a task, as an average over the tuned tasks.
    budget_s : float, optional
        Wall-clock seconds after which no batch of tuning begins.
    strategy : {"selective", "full", "oneshot"}
        Tune one task of each cluster, or every task, or predict.
    mode : {"measure", "predict"}
        ``predict``, the same as strategy ``oneshot``: every task takes the schedule that the
        predictor rates best. Tuning then measures nothing and takes seconds; the result is
        measured all the same.
    target : str
        ``auto`` (this CPU), a kind such as ``cuda``, or a TVM target as JSON.
    threads : int, optional
        All usable cores unless given.
    device : str
        Where to measure: ``here``, ``rpc://HOST:9190/KEY`` (boards behind a TVM tracker, with a
        target as JSON), ``tcp://HOST:8786`` (a fleet behind a Dask scheduler).
    out : str or Path
        Folder of the result; what stands there from an equal call is taken as it is.
    seed : int
        Of inputs and searches.
    options : mapping, optional
        Further options by stage, such as ``{"tune": {"strategy": "annealing"}}``.

    Returns
    -------
    tuned : TunedModel

    Raises
    ------
    InputError
        If the model, a shape or an option cannot be used.
    MachineError
        If the machine lacks a device, a compiler or disk space.
    VerificationError
        If outputs differ from onnxruntime's.
    """
    if strategy not in _STRATEGIES:
        raise InputError(f"strategy {strategy!r} is unknown: give {' or '.join(_STRATEGIES)}")
    if mode not in _MODES:
        raise InputError(f"mode {mode!r} is unknown: give {' or '.join(_MODES)}")
    if mode == PREDICT:
        strategy = _ONESHOT
    given = _sections(options or {}, strategy, trials, budget_s, seed)
    folder = Path(out)
    steps = _Steps(folder)
    add_model(
        str(model),
        folder / "models",
        _NAME,
        shapes,
        seed,
        dimensions,
        replace=True,
        constants=constants,
        inputs=None if inputs is None else Path(inputs),
    )
    machine = FingerprintOptions(
        target=target, threads="auto" if threads is None else threads, device=device
    )
    fingerprint = detect_fingerprint(machine)
    steps.depend(fingerprint.identity(), *_digests(folder / "models" / _NAME))
    compiled = _made(steps, folder, fingerprint, given, strategy)
    metrics = artifacts.Metrics.read(folder / "benchmark")
    return TunedModel(
        library=compiled,
        latency_ms=metrics.latency_ms,
        untuned_latency_ms=metrics.untuned_latency_ms,
        onnxruntime_latency_ms=metrics.onnxruntime_latency_ms,
        tuning_s=metrics.tuning_s,
        report=(folder / "benchmark" / "report.md").read_text(),
        directory=folder,
    )


def load(library: str | Path) -> Callable[..., dict[str, np.ndarray]]:
    """Load a tuned library for running.

    Parameters
    ----------
    library : str or Path
        `TunedModel.library`: its inputs' and outputs' names stand in the import report of the
        folder that it was made in.

    Returns
    -------
    run : callable
        ``run(images=array, ...)`` gives the outputs by name.

    Raises
    ------
    InputError
        If the library or the report beside it is missing, or inputs do not fit.
    """
    path = Path(library)
    if not path.is_file():
        raise InputError(f"{path} is missing: give the library that fewtune.tune returned")
    folder = path.parent.parent
    fingerprint = Fingerprint.read(folder / "fingerprint")
    imported = artifacts.ImportReport.read(folder / "import")
    set_threads(fingerprint.threads)
    compiled = CompiledModel(path, target_from_json(fingerprint.target))

    def run(**inputs: np.ndarray) -> dict[str, np.ndarray]:
        expected = {spec.name: spec for spec in imported.inputs}
        if inputs.keys() != expected.keys():
            raise InputError(
                f"inputs {sorted(inputs)} were given, but the model takes {sorted(expected)}"
            )
        values = []
        for name, spec in expected.items():
            value = np.ascontiguousarray(inputs[name], dtype=spec.dtype)
            if value.shape != tuple(spec.shape):
                raise InputError(
                    f"input {name!r} has shape {value.shape}, but the library was made for "
                    f"{tuple(spec.shape)}"
                )
            values.append(value)
        names = [spec.name for spec in imported.outputs]
        return dict(zip(names, compiled.outputs(values), strict=True))

    return run


class _Steps:
    """Runs each step once: what a step wrote stands until something it depends on changes."""

    def __init__(self, folder: Path) -> None:
        self._keys = folder / "keys"
        self._key = ""

    def depend(self, *parts: str) -> None:
        """Add something that all later steps depend on."""
        self._key = hashlib.sha256("\n".join([self._key, *parts]).encode()).hexdigest()

    def run(
        self, name: str, options: BaseModel | None, output: Path, make: Callable[[Path], object]
    ) -> None:
        """Make ``output`` by a call with its scratch folder, unless it stands there already."""
        self.depend(name, "" if options is None else options.model_dump_json())
        note = self._keys / name
        if output.is_dir() and note.is_file() and note.read_bytes() == self._key.encode():
            return
        note.unlink(missing_ok=True)
        with whole_directory(output) as scratch:
            make(scratch)
        write_text(note, self._key)


def _made(
    steps: _Steps,
    folder: Path,
    fingerprint: Fingerprint,
    given: Mapping[str, Any],
    strategy: str,
) -> Path:
    """Run every step, and give the library's path."""
    target = target_from_json(fingerprint.target)
    journals = folder / "journals"

    def measuring(step: str, *, by_fleet: bool = False) -> Any:
        # A fleet's machines hold their own devices, batch by batch.
        if by_fleet and fingerprint.is_fleet:
            return nullcontext()
        return device_lock(device_name(fingerprint), f"{step} {folder}")

    def taken(scratch: Path) -> None:
        lowered = read_lowered(folder / "import")
        tasks = extract_tasks(lowered, target)
        infos = [task.info for task in tasks]
        table = artifacts.TaskTable(model=_NAME, target=fingerprint.target, tasks=infos)
        table.write(scratch)
        write_modules(tasks, scratch)
        inputs = artifacts.ImportReport.read(folder / "import").inputs
        try:
            make_skeleton(lowered, inputs).write(scratch)
        except Exception:  # noqa: BLE001 (whatever TVM makes of it, tasks can be tuned)
            write_text(scratch / "no_finals", "the model could not be made of its kernels\n")

    def selected(scratch: Path) -> None:
        began_s = time.perf_counter()
        bank = Bank.read(folder / "bank")
        selection, _ = select_tasks(
            read_tasks(folder / "tasks"),
            given["select_tasks"],
            target=target,
            model=_NAME,
            strategy=strategy,
            bank=bank,
        )
        selection.write(scratch)
        SelectionTiming(selecting_s=round(time.perf_counter() - began_s, 3)).write(scratch)

    def tuned(scratch: Path) -> None:
        selection = Selection.read(folder / "select")
        if given["tune"].predicts(selection.method):
            empty_report(selection, fingerprint, given["tune"], scratch)
            return
        with measuring("tune", by_fleet=True):
            tune_tasks(
                read_tasks(folder / "tasks"),
                selection,
                fingerprint,
                given["tune"],
                journals / "tune",
                scratch,
                run=runner_of(fingerprint),
            )

    def shared(scratch: Path) -> None:
        if TuneReport.read(folder / "tune").is_predicted:
            predict_schedules(
                read_tasks(folder / "tasks"),
                Selection.read(folder / "select"),
                fingerprint,
                given["share_schedules"],
                scratch,
                bank_directory=folder / "bank",
            )
            return
        with measuring("share schedules of", by_fleet=True):
            share_schedules(
                read_tasks(folder / "tasks"),
                Selection.read(folder / "select"),
                folder / "tune",
                fingerprint,
                given["share_schedules"],
                journals / "share",
                scratch,
                bank_directory=folder / "bank",
                model_directory=folder / "tasks",
                run=runner_of(fingerprint),
            )

    def compiled(scratch: Path) -> None:
        compile_apart(
            folder / "import",
            folder / "tasks",
            folder / "share",
            folder / "fingerprint",
            given["compile"],
            scratch,
            model=_NAME,
            strategy=strategy,
        )

    def measured(scratch: Path) -> None:
        with measuring("benchmark"):
            benchmark_model(
                folder / "import",
                read_tasks(folder / "tasks"),
                Selection.read(folder / "select"),
                SelectionTiming.read(folder / "select").selecting_s,
                TuneReport.read(folder / "tune"),
                ShareReport.read(folder / "share"),
                folder / "compile",
                fingerprint,
                given["benchmark"],
                scratch,
            )

    steps.run("fingerprint", None, folder / "fingerprint", fingerprint.write)
    steps.run(
        "import",
        given["import_model"],
        folder / "import",
        lambda scratch: import_apart(
            _NAME,
            folder / "models",
            fingerprint.target,
            fingerprint.threads,
            given["import_model"],
            scratch,
        ),
    )
    steps.run("tasks", None, folder / "tasks", taken)
    bank = given["build_bank"]
    steps.depend(*(_digests(Path(bank.logs)) if bank.logs is not None else ()))
    steps.run("bank", bank, folder / "bank", lambda it: build_bank(bank, fingerprint, it))
    steps.run("select", given["select_tasks"], folder / "select", selected)
    steps.run("tune", given["tune"], folder / "tune", tuned)
    steps.run("share", given["share_schedules"], folder / "share", shared)
    # Journals are for a call that was killed; their results are safe now.
    shutil.rmtree(journals, ignore_errors=True)
    steps.run("compile", given["compile"], folder / "compile", compiled)
    steps.run("benchmark", given["benchmark"], folder / "benchmark", measured)
    return folder / "compile" / artifacts.CompileReport.read(folder / "compile").library


def _sections(
    options: Mapping[str, Mapping[str, Any]],
    strategy: str,
    trials: int | None,
    budget_s: float | None,
    seed: int,
) -> dict[str, Any]:
    """Every stage's options: those given over those that the arguments say."""
    unknown = sorted(options.keys() - _SECTIONS.keys())
    if unknown:
        raise InputError(f"options has no section {unknown[0]!r}: give {', '.join(_SECTIONS)}")
    seeded = {"tune", "share_schedules", "benchmark", "compile", "import_model"}
    said: dict[str, dict[str, Any]] = {
        name: {"seed": seed} if name in seeded and "seed" in kind.model_fields else {}
        for name, kind in _SECTIONS.items()
    }
    said["select_tasks"] |= _STRATEGIES[strategy]
    said["tune"] |= {} if trials is None else {"trials_per_task": trials}
    said["tune"] |= {} if budget_s is None else {"budget_s": budget_s}
    found: dict[str, Any] = {}
    for name, kind in _SECTIONS.items():
        try:
            found[name] = kind.model_validate({**said[name], **options.get(name, {})})
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join([name, *(str(step) for step in first["loc"])])
            raise InputError(f"option {key}: {first['msg']}") from None
    return found


def _digests(folder: Path) -> Iterable[str]:
    """The files of a folder by name and content."""
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        yield json.dumps([str(file.relative_to(folder)), file_sha256(file)])


__all__ = ["CheckReport", "TunedModel", "check", "load", "tune"]
