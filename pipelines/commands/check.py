"""The check of a model, with the parameters and earlier results of this checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fewtune.errors import FewtuneError, InputError, MachineError, VerificationError
from fewtune.model.import_options import ImportOptions
from fewtune.model_check.estimate import PastTunings
from fewtune.model_check.job import CheckJob
from fewtune.model_check.report import CheckReport
from fewtune.process.apart import run_apart
from fewtune.process.contexts import without_gc
from fewtune.process.job import Job
from stages.params import load_all
from stages.paths import Places

_ERRORS = {kind.exit_code: kind for kind in (InputError, MachineError, VerificationError)}
_STRATEGY = "selective"


def check_source(job: CheckJob, root: Path | None) -> CheckReport:
    """Check a model as `fewtune.model_check.check.check` does, with this checkout's parameters.

    Parameters
    ----------
    job : CheckJob
        Of the model and its inputs.
    root : Path or None
        The checkout; without one, parameters have their defaults.
    """
    try:
        # TVM takes seconds to load: only the child loads it.
        return CheckReport.from_json(run_apart(CheckoutJob(job=job, root=root)))
    except FewtuneError as error:
        reason = " ".join(str(error).split())
        return CheckReport(ok=False, reason=reason, exit_code=error.exit_code, model=str(job.model))


class CheckoutJob(Job):
    """A check with a checkout's parameters."""

    job: CheckJob
    root: Path | None

    def run(self) -> dict[str, Any]:
        """Check the model in this process, which native code may crash."""
        with without_gc(for_good=True):
            from fewtune.model_check import check

        given: dict[str, Any] = {"left_out": self.left_out}
        if self.root is not None:
            places = Places(self.root)
            params = load_all(places.params)
            trials = params["tune"].trials_per_task
            given |= {
                "models_directory": places.models,
                "machine": params["fingerprint"],
                "options": next(p for p in params.values() if isinstance(p, ImportOptions)),
                "trials": trials,
                "past": _past_tunings(places, trials),
            }
        return check.check_here(self.job.model_copy(update=given))


def refuse_unless_ok(job: CheckJob, root: Path) -> None:
    """Raise the error that would end a run.

    Raises
    ------
    InputError, MachineError, VerificationError
    """
    report = check_source(job, root)
    if not report.ok:
        raise _ERRORS.get(report.exit_code, InputError)(report.reason or "the check failed")


def _past_tunings(places: Places, trials: int) -> PastTunings | None:
    """The time of selective tuning in the results on disk."""
    from fewtune.artifacts import ShareReport, TuneReport

    seconds, task_trials, runs = 0.0, 0, 0
    for file in places.out.glob(f"*/{_STRATEGY}/share/share.json"):
        model = file.parent.parent.parent.name
        try:
            shared = ShareReport.read(places.shared(model, _STRATEGY))
            tuned = TuneReport.read(places.tuned(model, _STRATEGY))
        except FewtuneError:
            continue
        seconds += shared.sharing_s + tuned.tuning_s
        task_trials += (len(shared.tasks) + len(tuned.tasks)) * trials
        runs += 1
    return PastTunings(seconds, task_trials, runs) if runs else None
