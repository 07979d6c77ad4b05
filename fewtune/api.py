"""What a notebook calls: tune a model and run the result, without DVC, Prefect or MLflow.

The steps are those of the pipeline's stages, and run the same code. Each keeps its output under
``out``, with a digest of everything that it depends on. A second call with the same arguments
measures nothing. A call that was killed goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from fewtune import artifacts
from fewtune.errors import InputError
from fewtune.machine.fingerprint import FingerprintOptions, detect_fingerprint
from fewtune.model_check.report import too_few
from fewtune.options import (
    PREDICT,
    BankOptions,
    BenchmarkOptions,
    CompileOptions,
    ImportSection,
    PredictOptions,
    SelectOptions,
    ShareOptions,
    TuneOptions,
)
from fewtune.process.child_python import TVM
from fewtune.process.contexts import end_without_scans, without_gc
from fewtune.process.ending import ending_early
from fewtune.process.temporary import own_temporary_folder
from fewtune.process.warm import warm_process
from fewtune.progress.progress import Snapshot, heard_by
from fewtune.util.asked import in_python
from fewtune.util.files import machine_errors
from fewtune.util.validation import complaint

ONESHOT = "oneshot"
STRATEGIES: dict[str, dict[str, Any]] = {
    "selective": {},
    "full": {"method": "all"},
    ONESHOT: {"method": PREDICT},
}
MODES = ("measure", PREDICT)
_SECTIONS: dict[str, type[BaseModel]] = {
    "import_model": ImportSection,
    "select_tasks": SelectOptions,
    "build_bank": BankOptions,
    "predict": PredictOptions,
    "tune": TuneOptions,
    "share_schedules": ShareOptions,
    "compile": CompileOptions,
    "benchmark": BenchmarkOptions,
}


def sections(
    options: Mapping[str, Mapping[str, Any]],
    strategy: str,
    trials: int | None,
    budget_s: float | None,
    seed: int,
) -> dict[str, Any]:
    """Every stage's options: those of the arguments, overridden by the given ones."""
    unknown = sorted(options.keys() - _SECTIONS.keys())
    if unknown:
        raise InputError(f"options has no section {unknown[0]!r}: give {', '.join(_SECTIONS)}")
    said: dict[str, dict[str, Any]] = {
        "select_tasks": STRATEGIES[strategy],
        "tune": {"trials_per_task": trials, "budget_s": budget_s},
        "share_schedules": {"budget_s": budget_s},
    }
    found: dict[str, Any] = {}
    for name, kind in _SECTIONS.items():
        own = {"seed": seed} if "seed" in kind.model_fields else {}
        own |= {key: each for key, each in said.get(name, {}).items() if each is not None}
        given = {**own, **options.get(name, {})}
        try:
            found[name] = kind.model_validate(given)
        except ValidationError as error:
            raise InputError(complaint(error, f"option {name}", kind, given)) from None
    return found


# Modules that run in processes of their own, in the order in which they are needed.
APART = (
    TVM,
    "fewtune.model.import_model",
    # Importing a model loads it to slim the graph.
    "onnxslim",
    # Every process with a target of this machine's CPU parses these.
    "fewtune.runtime.tvm:register_own_intrinsics",
    "fewtune.tuning.job",
    "fewtune.workers.worker",
    "fewtune.workers.model_runner",
    "fewtune.tuning.session",
    "fewtune.sharing.session",
    "fewtune.machine.peak",
    "fewtune.prediction.predict",
    "fewtune.compile.compile",
)


@dataclass(frozen=True)
class TunedModel:
    """A tuned model: its library, and its measurements.

    Attributes
    ----------
    library : Path
        The exported library, for `fewtune.load` and `fewtune.InferenceSession`.
    latency_ms, untuned_latency_ms, onnxruntime_latency_ms : float
        Medians of interleaved rounds on the same threads; onnxruntime's is None on a board.
    tuning_s : float
        Seconds of selecting, tuning and sharing.
    report : str
        The results table and the kernels, as markdown.
    directory : Path
        Everything that was written: one folder for each step.
    """

    library: Path
    latency_ms: float
    untuned_latency_ms: float
    onnxruntime_latency_ms: float | None
    tuning_s: float
    report: str
    directory: Path

    def __repr__(self) -> str:
        figures = self.to_dict()
        names = ("latency_ms", "untuned_latency_ms", "onnxruntime_latency_ms", "tuning_s")
        rows = [
            f"{name.replace('_', ' ')}: {figures[name]:.4g}" for name in names if name in figures
        ]
        disturbed = ["disturbed"] if "disturbed" in figures else []
        return f"TunedModel({str(self.library)!r}: {', '.join([*rows, *disturbed])})"

    def _repr_markdown_(self) -> str:
        """What a notebook shows."""
        return self.report

    def to_dict(self) -> dict[str, Any]:
        """All figures of the result by name, with units in the names; paths as text."""
        figures = artifacts.Metrics.read(self.directory / "benchmark").figures()
        return {"library": str(self.library), "directory": str(self.directory), **figures}

    @property
    def kernels(self) -> Any:
        """The kernels, the heaviest first: a DataFrame if pandas is installed, else dicts."""
        found = artifacts.BenchmarkReport.read(self.directory / "benchmark").kernels
        rows = [row.model_dump() for row in sorted(found, key=artifacts.KernelRow.order)]
        try:
            return import_module("pandas").DataFrame(rows)
        except ImportError:
            return rows


def tune(  # noqa: PLR0913 (what a user can say)
    model: str | Path,
    shapes: Mapping[str, Any] | Sequence[Mapping[str, Sequence[int]]] | None = None,
    *,
    dimensions: Mapping[str, int | Sequence[int]] | None = None,
    paddable: Mapping[str, float] | None = None,
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
    progress: Callable[[Snapshot], object] | None = None,
) -> TunedModel:
    """Tune an ONNX model for this machine.

    Parameters
    ----------
    model : str or Path
        An ``.onnx`` file, or ``light:NAME``.
    shapes : mapping of str to sequence of int, optional
        Static shape of each input that has dynamic dimensions; or a sequence of such mappings, or a
        mapping of names to such, for one library of several shapes.
    dimensions : mapping of str to int, optional
        Size of each named dynamic dimension; or several sizes, for one library of several shapes.
    paddable : mapping of str to float, optional
        Dimensions that a session may pad up to the next shape of the library, with the value that
        it pads with. Outputs are cut back.
    constants : mapping, optional
        Value of each input to be fixed: a number or nested lists. The tuned model lacks that input.
    inputs : str or Path, optional
        An ``.npz`` file of sample inputs, input name to array; outputs are compared on them, too.
    trials : int, optional
        Schedules measured for each task, as an average over the tuned tasks.
    budget_s : float, optional
        Wall-clock seconds after which no batch of tuning begins.
    strategy : {"selective", "full", "oneshot"}
        Tune one task of each cluster, or every task, or predict.
    mode : {"measure", "predict"}
        ``predict`` is the same as strategy ``oneshot``: every task takes the schedule that the
        predictor rates best. Tuning then measures nothing and takes seconds. The latency of the
        result is still measured.
    target : str
        ``auto`` (this CPU), a kind such as ``cuda``, or a TVM target as JSON.
    threads : int, optional
        All usable cores unless given.
    device : str
        Where to measure: ``here``, ``rpc://HOST:9190/KEY`` (boards behind a TVM tracker, with a
        target as JSON), ``tcp://HOST:8786`` (a fleet behind a Dask scheduler).
    out : str or Path
        Folder of the result; steps that an equal call has done there are not repeated.
    seed : int
        Of inputs and searches.
    options : mapping, optional
        Further options by stage, such as ``{"tune": {"strategy": "annealing"}}``.
    progress : callable, optional
        Gets a snapshot after each measured batch (``task``, ``trials``, ``trials_total``,
        ``estimated_latency_ms``, ``line()``, ...), from a thread. Nothing is printed then; other
        messages go to the logger ``fewtune``.

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
    if strategy not in STRATEGIES:
        raise InputError(f"strategy {strategy!r} is unknown: give {' or '.join(STRATEGIES)}")
    if mode not in MODES:
        raise InputError(f"mode {mode!r} is unknown: give {' or '.join(MODES)}")
    if mode == PREDICT:
        strategy = ONESHOT
    given = sections(options or {}, strategy, trials, budget_s, seed)
    if strategy == "selective" and (line := too_few(str(model), given["tune"].trials_per_task)):
        logging.getLogger("fewtune").warning("%s", line)
    # The warm process loads TVM in parallel to this one.
    shared = Path(tempfile.gettempdir())
    heard = contextlib.nullcontext() if progress is None else heard_by(progress)
    with (
        in_python(),
        machine_errors(shared, Path(out)),
        own_temporary_folder(),
        heard,
        warm_process(APART),
        # The first interrupt ends the measuring with the best so far.
        ending_early(Path(tempfile.gettempdir()) / "end"),
    ):
        return _tuned(
            model,
            Path(out),
            {
                "shapes": shapes,
                "seed": seed,
                "dimensions": dimensions,
                "paddable": paddable,
                "constants": constants,
                "inputs": None if inputs is None else Path(inputs),
            },
            FingerprintOptions(
                target=target, threads="auto" if threads is None else threads, device=device
            ),
            given,
            strategy,
        )


def _tuned(
    model: str | Path,
    folder: Path,
    binding: Mapping[str, Any],
    machine: FingerprintOptions,
    options: dict[str, Any],
    strategy: str,
) -> TunedModel:
    """Do what `tune` does, with its arguments checked."""
    with without_gc():
        from fewtune.model.source import add_model
        from fewtune.steps.steps import NAME, Run
    end_without_scans()

    add_model(str(model), folder / "models", NAME, replace=True, **binding)
    run = Run(folder, detect_fingerprint(machine), options, strategy)
    run.go()
    compiled = run.place("compile")
    metrics = artifacts.Metrics.read(folder / "benchmark")
    return TunedModel(
        library=compiled / artifacts.CompileReport.read(compiled).library,
        latency_ms=metrics.latency_ms,
        untuned_latency_ms=metrics.untuned_latency_ms,
        onnxruntime_latency_ms=metrics.onnxruntime_latency_ms,
        tuning_s=metrics.tuning_s,
        report=(folder / "benchmark" / "report.md").read_text(),
        directory=folder,
    )
