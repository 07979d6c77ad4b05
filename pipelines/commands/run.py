"""What `fewtune run` and `record` do."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from fewtune.errors import InputError, MachineError
from pipelines.arguments.values import parse_constants, parse_dimensions, parse_shapes
from pipelines.checkout.project import find_root
from pipelines.checkout.run_lock import turn
from pipelines.commands.show import close_output, say, show_results
from pipelines.dvc_repo.track import model_files, track
from stages.paths import Places

if TYPE_CHECKING:
    from fewtune.machine.fingerprint import FingerprintOptions
    from pipelines.runs.outcome import Outcome


def run(options: argparse.Namespace) -> int:
    """Bring results up to date."""
    from pipelines.checkout.parameters import change_parameters, parse_setting
    from pipelines.checkout.results import listed, read_results
    from pipelines.runs.warm import warm_process
    from stages.params import COMPARED, load_all

    root = find_root()
    places = Places(root)
    values: dict[str, Any] = dict(parse_setting(text) for text in options.set)
    for key_path, value in (
        ("tune.trials_per_task", options.trials),
        ("tune.budget_s", options.budget),
        ("fingerprint.target", options.target),
        ("fingerprint.device", options.device),
    ):
        if value is not None:
            whole = isinstance(value, float) and value.is_integer()
            values[key_path] = int(value) if whole else value
    with turn(root, f"run {' '.join(options.models) or 'all models'}", say), warm_process(root):
        known = load_all(places.params)
        own = {key: value for key, value in values.items() if key.startswith("fingerprint.")}
        if own:
            # Checked before it is written, so that no later run fails on it.
            _check_device(known["fingerprint"], own)
        _check_strategies(options.strategy or [], listed(root)[1])
        models = _models(options, places, root)
        for line in change_parameters(places.params, values, models):
            print(line, flush=True)
        known_models, known_strategies = listed(root)
        models = models or known_models
        strategies = known_strategies if options.all else options.strategy or [COMPARED[0]]
        outcome = _run_flow(models, list(dict.fromkeys(strategies)), options.force)
    try:
        show_results(read_results(root, say, models), root)
    except BrokenPipeError:
        # The outcome is still printed to standard error.
        close_output()
    for failure in outcome.failures:
        say(f"fewtune: {failure.line()}")
    if outcome.skipped:
        say(f"fewtune: skipped for it: {', '.join(outcome.skipped)}")
    return outcome.exit_code


def _check_device(known: FingerprintOptions, changes: Mapping[str, Any]) -> None:
    """Refuse a target or device that does not exist."""
    from fewtune.machine.fingerprint import detect_fingerprint
    from fewtune.runtime.target import resolve_target

    changed = {key.partition(".")[2]: value for key, value in changes.items()}
    try:
        options = type(known).model_validate({**known.model_dump(), **changed})
    except ValidationError:
        # The writer of params.yaml reports the wrong key.
        return
    if options.device == "here":
        resolve_target(str(options.target), 1)
    else:
        detect_fingerprint(options)


def _check_strategies(given: Sequence[str], known: Sequence[str]) -> None:
    from fewtune.util.validation import nearest

    for strategy in given:
        if strategy not in known:
            raise InputError(
                f"strategy {strategy!r} is not listed in params.yaml"
                f"{nearest(strategy, known, 'listed')}"
            )


def _models(options: argparse.Namespace, places: Places, root: Path) -> list[str]:
    """Names of the given models; those given as files are registered first."""
    from fewtune.model.light import light_names
    from fewtune.model.registration import LIGHT_PREFIX
    from fewtune.model.source import add_model
    from fewtune.util.validation import nearest

    registered = places.registered()
    sources = [
        text
        for text in options.models
        if text not in registered
        and (text.startswith(LIGHT_PREFIX) or text.endswith(".onnx") or Path(text).is_file())
    ]
    for text in options.models:
        if text not in registered and text not in sources:
            if text in light_names():
                hint = f"; register it with `fewtune add {LIGHT_PREFIX}{text}`"
            else:
                hint = nearest(text, registered, "registered")
            raise InputError(f"{text!r} is no registered model and no file{hint}")
    shapes, dimensions = parse_shapes(options.shape), parse_dimensions(options.dimension)
    constants = parse_constants(options.constant)
    inputs = None if options.inputs is None else Path(options.inputs)
    if (shapes or dimensions or constants or inputs) and len(sources) != 1:
        raise InputError(
            "shapes, constants and inputs belong to one .onnx file: give one, or use `fewtune add`"
        )
    named = {
        text: add_model(
            text, places.models, None, shapes, 0, dimensions, constants=constants, inputs=inputs
        )
        for text in sources
    }
    problem = track(root, model_files(root, named.values()))
    if problem:
        say(f"fewtune: {problem}")
    return list(dict.fromkeys(named.get(text, text) for text in options.models))


def _run_flow(models: list[str], strategies: list[str], force: bool) -> Outcome:
    """Run in this process: as a flow if there is a Prefect server, else without Prefect."""
    url = os.environ.get("PREFECT_API_URL")
    if not url:
        from pipelines.runs.run_plan import CommandSteps, run_all

        return run_all(models, strategies, CommandSteps(), force=force)
    import httpx

    from pipelines.flow import outcome_of, selective_tuning

    try:
        state = selective_tuning(models, strategies, force=force, return_state=True)
    except (RuntimeError, httpx.TransportError) as error:
        text = str(error)
        if "API" not in text and not isinstance(error, httpx.TransportError):
            raise
        raise MachineError(f"Prefect at {url} cannot be reached: {text.splitlines()[0]}") from None
    return outcome_of(state)


def record(options: argparse.Namespace) -> int:
    """Record results that are on disk and not in MLflow."""
    from pipelines.runs.record_all import record_all

    root = find_root()
    with turn(root, "record", say):
        return record_all(root, options.models or None, say)
