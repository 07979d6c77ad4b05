"""Checks a model as a run would: imports it, verifies it untuned, and lists its tasks."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fewtune.errors import FewtuneError, InputError
from fewtune.machine.fingerprint import detect_fingerprint
from fewtune.model.import_model import imported_model
from fewtune.model.registration import REGISTRATION, ModelSource, name_of
from fewtune.model.source import add_model
from fewtune.model_check.report import CheckJob, CheckReport, estimate, too_few
from fewtune.prediction.predict import spreads
from fewtune.prediction.worth import UNKNOWN
from fewtune.process.apart import at, run_apart
from fewtune.process.temporary import own_temporary_folder
from fewtune.runtime.target import target_from_json
from fewtune.task.extract import extract_tasks, is_worth_searching
from fewtune.util.asked import in_python
from fewtune.util.files import machine_errors
from fewtune.util.validation import complaint


def check(
    model: str | Path | CheckJob,
    shapes: Mapping[str, Sequence[int]] | Sequence[Mapping[str, Sequence[int]]] | None = None,
    **further: Any,
) -> CheckReport:
    """Report what a run would do with a model, without tuning or registering it.

    Parameters
    ----------
    model : str, Path or CheckJob
        An ``.onnx`` file, ``light:NAME``, or the name of a registered model; or a job
        with all arguments.
    shapes : mapping, optional
        Shapes of the model's inputs, or a sequence of such mappings for several.
    **further
        The other attributes of `fewtune.model_check.report.CheckJob`, by name.

    Returns
    -------
    report : CheckReport
        It contains errors that a user can correct; they are not raised.
    """
    given = {"model": model, "shapes": shapes, **further}
    name = str(getattr(model, "model", model))
    try:
        job = model if isinstance(model, CheckJob) else CheckJob.model_validate(given)
        folder = Path(tempfile.gettempdir())
        with in_python(), machine_errors(folder), own_temporary_folder():
            return CheckReport.model_validate(run_apart(_Check(**dict(job))))
    except FewtuneError as error:
        return CheckReport.refused(name, error)
    except ValidationError as error:
        refusal = InputError(complaint(error, "check", CheckJob, given))
        return CheckReport.refused(name, refusal)


class _Check(CheckJob):
    """A job that is done where it is."""

    def run(self) -> dict[str, Any]:
        return check_here(self)


def check_here(job: CheckJob) -> dict[str, Any]:
    """Do the job of `check` in this process, which native code may crash."""
    name = str(job.model)
    try:
        with tempfile.TemporaryDirectory(prefix="fewtune-check-") as scratch:
            folder = Path(scratch)
            at("reading the model's file")
            models, name = _registered(job, folder)
            # Loading TVM takes a second, and many models are refused before: so it comes here.
            fingerprint = detect_fingerprint(job.machine)
            target = target_from_json(fingerprint.target)
            given = name, models, target, fingerprint.threads, job.options, job.left_out
            shapes = range(1 + len(ModelSource.read(models, name).further))
            imported, *_ = [imported_model(*given, shape) for shape in shapes]
            at("splitting the model into tasks", optional=[])
            tasks = extract_tasks(imported.lowered)
            worth = [t for t in tasks if is_worth_searching(t.info, job.select.min_share)]
            at("rating schedules")
            spread = spreads(worth, target)
    except FewtuneError as error:
        return CheckReport.refused(name, error).as_json()
    report = imported.report
    return CheckReport(
        ok=True,
        model=name,
        inputs=report.inputs,
        outputs=report.outputs,
        max_error=report.max_error,
        layout=report.layout,
        tasks=len(tasks),
        tuned=[task.info.name for task in worth],
        known=[name for name, each in spread.items() if each < UNKNOWN],
        expected_gain=sum(task.info.share * spread[task.info.name] for task in worth),
        left_out=report.left_out,
        notes=[*report.notes, *filter(None, [too_few(name, job.trials)])],
        estimate=estimate(len(tasks), job.trials, job.past),
    ).as_json()


def _registered(job: CheckJob, folder: Path) -> tuple[Path, str]:
    """Folder and name of a registered model; other models are registered in ``folder`` first."""
    source = str(job.model)
    is_bound = any((job.shapes, job.dimensions, job.paddable, job.constants, job.inputs))
    known = None if is_bound or source.endswith(".onnx") else job.models_directory
    if known is not None and (known / source / REGISTRATION).is_file():
        ModelSource.read(known, source)
        return known, source
    models, name = folder / "models", name_of(source, job.name)
    add_model(
        source,
        models,
        name,
        job.shapes,
        job.seed,
        job.dimensions,
        constants=job.constants,
        inputs=job.inputs,
        paddable=job.paddable,
    )
    return models, name
