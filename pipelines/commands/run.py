"""What `fewtune run` and `record` do."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewtune.errors import InputError, MachineError, quoted
from fewtune.pipelines.checkout.project import find_root, turn
from fewtune.pipelines.commands.given import given_inputs
from fewtune.pipelines.commands.show import (
    remark,
    results_json,
    say,
    show_json,
    show_results,
    tell,
)
from fewtune.process.ending import close_output
from fewtune.stages.paths import Places

if TYPE_CHECKING:
    from fewtune.pipelines.runs.outcome import Outcome


def run(options: argparse.Namespace) -> int:
    """Bring results up to date."""
    from fewtune.pipelines.checkout.parameters import change_parameters, changed_parameters, of_run
    from fewtune.pipelines.checkout.results import listed, read_results
    from fewtune.pipelines.dvc_repo.dag import require_listed
    from fewtune.pipelines.runs.run_plan import warm_process
    from fewtune.stages.params import COMPARED, LISTS, OF_MODEL, PER_STRATEGY

    root = find_root()
    path = Places(root).params
    values, given = _settings(options), given_inputs(options)
    purpose = f"run {' '.join(options.models) or 'all models'}"
    with _progress_apart(options), turn(root, purpose, remark), warm_process(root):
        # Everything is checked before anything is written.
        _, _, params = changed_parameters(path, values)
        if any(key.partition(".")[0] == "fingerprint" for key in values):
            from fewtune.machine.fingerprint import detect_fingerprint

            detect_fingerprint(params["fingerprint"])
        known = dict.fromkeys(name for section in sorted(PER_STRATEGY) for name in params[section])
        strategies = list(known) if options.all else options.strategy or [COMPARED[0]]
        for strategy in strategies:
            require_listed("strategy", strategy, known)
        own = {key: values.pop(key) for key in [*values] if key.partition(".")[0] in OF_MODEL}
        named = _models(options.models, given, options.name, root)
        models = named or listed(root)[0]
        if not models:
            raise InputError("no model is registered: `fewtune run MODEL.onnx` registers one")
        compared = models if set(COMPARED) <= set(strategies) else []
        lists = dict(zip(LISTS, (named, strategies, compared), strict=True))
        if options.save:
            # Of the models that are named, else of all.
            lines = change_parameters(path, values if named else {**values, **own}, lists, own)
        else:
            lines = change_parameters(path, values, lists)
            lines += [f"in this run: {key} {value}" for key, value in own.items()]
        for line in lines:
            tell(line)
        with of_run(models, {} if options.save else own):
            outcome = _run_flow(models, list(dict.fromkeys(strategies)), options.force)
    try:
        found = read_results(root, remark, models)
        if options.json:
            failures = [asdict(each) for each in outcome.failures]
            done = {"results": results_json(found, root), "failures": failures}
            show_json({**done, "skipped": outcome.skipped, "exit_code": outcome.exit_code})
        else:
            show_results(found, root, options.wide)
    except BrokenPipeError:
        # The outcome is still printed to standard error.
        close_output()
    for failure in outcome.failures:
        say(f"fewtune: {failure.line()}")
    if outcome.skipped:
        say(f"fewtune: skipped for it: {', '.join(outcome.skipped)}")
    return outcome.exit_code


@contextlib.contextmanager
def _progress_apart(options: argparse.Namespace) -> Iterator[None]:
    """Keep progress off standard output, where it is to hold JSON, or nothing but the results."""
    told = sys.stderr if options.json else sys.stdout
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere if options.quiet else told),
    ):
        yield


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """What is to be set, by key path."""
    from fewtune.pipelines.checkout.parameters import budgets, parse_setting

    values = dict(parse_setting(text) for text in options.set)
    machine = {"fingerprint.target": options.target, "fingerprint.device": options.device}
    values |= {key: value for key, value in machine.items() if value is not None}
    return values | budgets(options.trials, options.budget)


def _models(named: Sequence[str], given: dict[str, Any], name: str | None, root: Path) -> list[str]:
    """Names of models; those given as files are registered first."""
    from fewtune.model.light import light_names
    from fewtune.model.registration import LIGHT_PREFIX
    from fewtune.model.source import add_model
    from fewtune.util.validation import nearest

    places = Places(root)
    registered = places.registered()
    sources = [
        text
        for text in named
        if text not in registered
        and (text.startswith(LIGHT_PREFIX) or text.endswith(".onnx") or Path(text).is_file())
    ]
    for text in named:
        if text not in registered and text not in sources:
            hint = nearest(text, registered, "registered")
            if text in light_names():
                hint = f"; register it with `fewtune add {LIGHT_PREFIX}{text}`"
            raise InputError(f"{text!r} is no registered model and no file{hint}")
    if (any(given.values()) or name) and len(sources) != 1:
        raise InputError(
            "a name, shapes, constants and inputs belong to one .onnx file: give one, or use "
            "`fewtune add`"
        )
    names = {text: add_model(text, places.models, name, **given) for text in sources}
    if names:
        from fewtune.pipelines.dvc_repo.track import model_files, track

        problem = track(root, model_files(root, names.values()))
        if problem:
            say(f"fewtune: {problem}")
    return list(dict.fromkeys(names.get(text, text) for text in named))


def _run_flow(models: list[str], strategies: list[str], force: bool) -> Outcome:
    """Run in this process: as a flow if there is a Prefect server, else without Prefect."""
    url = os.environ.get("PREFECT_API_URL")
    if not url:
        from fewtune.pipelines.runs.run_plan import run_all
        from fewtune.pipelines.runs.terminal import steps_for

        return run_all(models, strategies, steps_for(sys.stdout), force=force)
    import httpx

    from fewtune.pipelines.flow import outcome_of, selective_tuning

    try:
        state = selective_tuning(models, strategies, force=force, return_state=True)
    except (RuntimeError, httpx.TransportError) as error:
        if "API" not in str(error) and not isinstance(error, httpx.TransportError):
            raise
        raise MachineError(f"Prefect at {url} cannot be reached: {quoted(error)}") from None
    return outcome_of(state)


def record(options: argparse.Namespace) -> int:
    """Record results that are on disk and not in MLflow; comparisons after their results."""
    from fewtune.pipelines.checkout.results import read_results
    from fewtune.pipelines.dvc_repo.dag import Result, read_dag
    from fewtune.pipelines.records.record import record_finished

    root, code = find_root(), 0
    with turn(root, "record", remark):
        dag = read_dag(root)
        found = read_results(root, remark, options.models or None)
        if not found:
            raise InputError("no result is on disk: make one with `fewtune run` or `dvc repro`")
        results = [Result(each.model, each.strategy) for each in found]
        joined = [Result(each.model) for each in found if each.comparison]
        for result in [*results, *dict.fromkeys(joined)]:
            try:
                tell(record_finished(root, result, dag.needed(result)))
            except InputError as error:
                say(f"fewtune: {result} is not recorded: {error}")
                code = code or error.exit_code
    return code
