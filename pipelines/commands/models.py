"""What `fewtune check` and `add` do."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from fewtune.errors import FewtuneError, InputError, MachineError, VerificationError
from fewtune.model.registration import name_of
from fewtune.model_check.report import CheckJob, CheckReport, PastTunings
from fewtune.options import ImportOptions, ImportSection
from fewtune.pipelines.checkout.project import find_root, root_if_any, turn
from fewtune.pipelines.commands.given import given_inputs
from fewtune.pipelines.commands.show import say, show_json, shown, tell
from fewtune.process.apart import run_apart
from fewtune.process.contexts import without_gc
from fewtune.progress.progress import Steps
from fewtune.stages.params import load_all
from fewtune.stages.paths import Places

_ERRORS = {kind.exit_code: kind for kind in (InputError, MachineError, VerificationError)}
_STRATEGY = "selective"


def add(options: argparse.Namespace) -> int:
    """Register a model and list it in params.yaml."""
    given = given_inputs(options)
    name_of(options.source, options.name)
    root = find_root()
    places = Places(root)
    if not options.no_check:
        report = _checked(options, given, root)
        if not report.ok:
            raise _ERRORS.get(report.exit_code, InputError)(report.reason or "check failed")
    from fewtune.model.source import add_model
    from fewtune.pipelines.checkout.parameters import MODELS, change_parameters
    from fewtune.pipelines.dvc_repo.track import model_files, track

    with turn(root, f"add {options.source}", say):
        load_all(places.params)
        name = add_model(
            options.source,
            places.models,
            options.name,
            seed=options.seed,
            replace=options.replace,
            **given,
        )
        lines = change_parameters(places.params, lists={MODELS: [name]})
        problem = track(root, model_files(root, [name]))
    if problem:
        say(f"fewtune: {problem}")
    tell(f"registered {name}: {shown(places.registration(name))}")
    for line in lines:
        tell(line)
    tell(f"tune with: fewtune run {name}")
    return 0


def check(options: argparse.Namespace) -> int:
    """Print what a run would do with a model."""
    report = _checked(options, given_inputs(options), root_if_any())
    if options.json:
        show_json(report.as_json())
        return report.exit_code
    show = tell if report.ok else say
    first, *rest = report.lines()
    show(first if report.ok else f"fewtune: {first}")
    for line in rest:
        show(line)
    return report.exit_code


def _checked(options: argparse.Namespace, given: dict[str, Any], root: Path | None) -> CheckReport:
    """Check a model in a process of its own, with the parameters of the checkout, if any."""
    name, source = options.name, options.source
    try:
        own = _of_checkout(Places(root)) if root is not None else {}
        job = _Check(model=source, name=name, seed=options.seed, **given, **own)
        with Steps("check", sys.stderr) as tell:
            return CheckReport.model_validate(
                run_apart(job, tell=tell if sys.stderr.isatty() else None)
            )
    except FewtuneError as error:
        return CheckReport.refused(str(source), error)


class _Check(CheckJob):
    """A check that loads TVM where it is done."""

    def run(self) -> dict[str, Any]:
        with without_gc(for_good=True):
            from fewtune.model_check.check import check_here

        return check_here(self)


def _of_checkout(places: Places) -> dict[str, Any]:
    """What a check takes from a checkout."""
    params = load_all(places.params)
    trials = params["tune"].trials_per_task
    section = next(each for each in params.values() if isinstance(each, ImportSection))
    return {
        "models_directory": places.models,
        "machine": params["fingerprint"],
        "options": ImportOptions(**dict(section), most_growth=params["compile"].most_growth),
        "trials": trials,
        "past": _past_tunings(places, trials),
    }


def _past_tunings(places: Places, trials: int) -> PastTunings | None:
    """The time of selective tuning in the results on disk."""
    from fewtune.artifacts import ShareReport, TuneReport

    seconds, task_trials, runs = 0.0, 0, 0
    for model in places.registered():
        try:
            shared = ShareReport.read(places.shared(model, _STRATEGY))
            tuned = TuneReport.read(places.tuned(model, _STRATEGY))
        except FewtuneError:
            continue
        seconds += shared.sharing_s + tuned.tuning_s
        task_trials += (len(shared.tasks) + len(tuned.tasks)) * trials
        runs += 1
    return PastTunings(seconds=seconds, task_trials=task_trials, runs=runs) if runs else None
