"""What each command does."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from fewtune.errors import InputError, MachineError, RegressionError
from fewtune.model.registration import check_name
from fewtune.report import kernel_tables, tables
from pipelines.checkout.project import find_root
from pipelines.checkout.run_lock import turn
from pipelines.commands.arguments import check_port, parse_constants, parse_dimensions, parse_shapes
from pipelines.commands.show import close_output, show_results, shown
from pipelines.dvc_repo.track import Tracker, model_files, track
from stages.paths import Places

if TYPE_CHECKING:
    from fewtune.machine.fingerprint import FingerprintOptions
    from pipelines.runs.outcome import Outcome


def say(line: str) -> None:
    """Tell the user something that is no result: on standard error."""
    print(line, file=sys.stderr, flush=True)


def add(options: argparse.Namespace) -> int:
    """Register a model."""
    if options.name is not None:
        # Before anything is loaded that takes a while.
        check_name(options.name)
    shapes, dimensions = parse_shapes(options.shape), parse_dimensions(options.dimension)
    constants = parse_constants(options.constant)
    inputs = None if options.inputs is None else Path(options.inputs)
    with Tracker(find_root()) as tracker:
        if not options.no_check:
            from fewtune.model.source import name_of
            from pipelines.commands.check import refuse_unless_ok

            name_of(options.source, options.name)
            refuse_unless_ok(
                options.source, shapes, dimensions, constants, inputs, options.seed, find_root()
            )
        sources, tracked = {options.source: options.name}, tracker.track
        given = (dimensions, options.replace, constants, inputs)
        return _register(sources, shapes, options.seed, *given, tracked=tracked)


def check(options: argparse.Namespace) -> int:
    """Say what a run would make of a model."""
    from pipelines.commands.check import check_source

    try:
        root = find_root()
    except InputError:
        root = None  # a model can be checked anywhere
    report = check_source(
        options.source,
        parse_shapes(options.shape),
        parse_dimensions(options.dimension),
        parse_constants(options.constant),
        None if options.inputs is None else Path(options.inputs),
        options.seed,
        root,
    )
    if options.json:
        print(json.dumps(report.as_json()))
    elif report.ok:
        print("\n".join(report.lines()))
    else:
        say("\n".join(["fewtune: " + report.lines()[0], *report.lines()[1:]]))
    return report.exit_code


def zoo(options: argparse.Namespace) -> int:
    """Show the zoo, or make models of it."""
    from fewtune.zoo.registry import verify, zoo_names
    from fewtune.zoo.seeded import ZOO_PREFIX
    from pipelines.commands.zoo import write_models, zoo_table

    names = zoo_names() if options.all else list(dict.fromkeys(options.models))
    for name in names:
        verify(name)
    if not names:
        for option in ("output", "quantise"):
            if getattr(options, option):
                raise InputError(f"--{option} needs the models that you name: give some, or --all")
        zoo_table().print()
        return 0
    if options.output is not None:
        directory = Path(options.output)
        for path in write_models(names, options.seed, directory, options.quantise):
            print(f"{path}: {path.stat().st_size / 1e6:.1f} MB", flush=True)
        return 0
    if options.quantise:
        with tempfile.TemporaryDirectory() as scratch:
            paths = write_models(names, options.seed, Path(scratch), quantised=True)
            files = {str(path): None for path in paths}
            return _register(files, {}, options.seed, {}, options.replace)
    sources = {f"{ZOO_PREFIX}{name}": None for name in names}
    return _register(sources, {}, options.seed, {}, options.replace)


def _register(
    sources: Mapping[str, str | None],
    shapes: dict[str, list[int]],
    seed: int,
    dimensions: dict[str, int],
    replace: bool,
    constants: Mapping[str, Any] | None = None,
    inputs: Path | None = None,
    tracked: Callable[[Sequence[str]], str] | None = None,
) -> int:
    """Register models, each under the name given for it or its own, and list them.

    ``tracked`` puts their files under DVC, and gives the reason where it cannot.
    """
    from fewtune.model.source import add_model
    from pipelines.checkout.parameters import change_parameters
    from stages.params import load_all

    root = find_root()
    places = Places(root)
    with turn(root, f"add {' '.join(sources)}", say):
        load_all(places.params)
        names = [
            add_model(
                source, places.models, name, shapes, seed, dimensions, replace, constants, inputs
            )
            for source, name in sources.items()
        ]
        lines = change_parameters(places.params, models=names)
        problem = tracked(model_files(root, names)) if tracked else ""
    if problem:
        say(f"fewtune: {problem}")
    for name in names:
        print(f"registered {name}: {shown(places.registration(name))}")
    for line in lines:
        print(line)
    print(f"tune with: fewtune run {' '.join(names)}")
    return 0


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
            # Before it is written: no later run should stumble over it.
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
        # What the run came to is told all the same.
        close_output()
    for failure in outcome.failures:
        say(f"fewtune: {failure.line()}")
    if outcome.skipped:
        say(f"fewtune: skipped for it: {', '.join(outcome.skipped)}")
    return outcome.exit_code


def _check_device(known: FingerprintOptions, changes: Mapping[str, Any]) -> None:
    """Refuse a target, or a device, that is not there."""
    from fewtune.machine.fingerprint import detect_fingerprint
    from fewtune.runtime.target import resolve_target

    changed = {key.partition(".")[2]: value for key, value in changes.items()}
    try:
        options = type(known).model_validate({**known.model_dump(), **changed})
    except ValidationError:
        # The writer says which key is wrong.
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
    from fewtune.model.source import add_model
    from fewtune.util.validation import nearest
    from fewtune.zoo.onnx_light import light_names
    from fewtune.zoo.registry import zoo_names
    from fewtune.zoo.seeded import LIGHT_PREFIX, SEEDED_PREFIXES

    registered = places.registered()
    sources = [
        text
        for text in options.models
        if text not in registered
        and (text.startswith(SEEDED_PREFIXES) or text.endswith(".onnx") or Path(text).is_file())
    ]
    for text in options.models:
        if text not in registered and text not in sources:
            if text in zoo_names():
                hint = f"; register it with `fewtune zoo {text}`"
            elif text in light_names():
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
    """Run in this process: as a flow where there is a Prefect server, else without Prefect."""
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


def report(options: argparse.Namespace) -> int:
    """Show what is on disk."""
    from pipelines.checkout.results import read_results

    root = find_root()
    found = read_results(root, say, options.models or None)
    missing = set(options.models) - {result.model for result in found}
    if missing or not found:
        what = f"of {', '.join(sorted(missing))} " if missing else ""
        again = " ".join(["fewtune run", *sorted(missing)])
        raise InputError(f"no result {what}is on disk: make it with `{again}`")
    if options.rfc_table:
        return _write_rfc_table(found, Path(options.rfc_table))
    if options.markdown:
        print(tables.results_markdown(found), end="")
        if options.kernels:
            for result in found:
                print(f"\n{kernel_tables.benchmark_markdown(result.benchmark)}", end="")
        return 0
    show_results(found, root)
    if options.kernels:
        for result in found:
            print(f"\n{result.model}, {result.strategy}:")
            kernel_tables.kernel_table(result.benchmark).print()
    return 0


def _write_rfc_table(found: Sequence[tables.Result], directory: Path) -> int:
    from fewtune.report.rfc_table import JSON, MARKDOWN, write_rfc_table

    if directory.exists() and not directory.is_dir():
        raise InputError(f"--rfc-table {directory} is no folder: give one that both files go to")
    comparisons = tables.distinct_comparisons(found)
    compared = {comparison.model for comparison in comparisons}
    for model in dict.fromkeys(result.model for result in found):
        if model not in compared:
            say(
                f"{model} is left out: no comparison was made of the results on disk: "
                f"`fewtune run {model} --all`"
            )
    if not comparisons:
        raise InputError(
            "no model was tuned both selectively and in full: make it with `fewtune run --all`"
        )
    for line in write_rfc_table(comparisons, directory):
        print(line)
    print(f"{directory / JSON}, {directory / MARKDOWN}: {len(comparisons)} models")
    return 0


def log(options: argparse.Namespace) -> int:
    """Merge or distil tuning logs."""
    output = Path(options.output)
    if options.best is not None and options.best < 1:
        raise InputError(f"--best {options.best}: give a number from 1 on")
    if output.exists():
        raise InputError(f"{output} is there already: give another --output, or remove it")
    from fewtune.storage.log_archive import merge
    from fewtune.util.files import whole_directory

    with whole_directory(output) as directory:
        kept = merge([Path(path) for path in options.logs], directory, options.best)
    print(f"{output}: {sum(kept.values())} records of {len(kept)} workloads")
    return 0


def bank(options: argparse.Namespace) -> int:
    """Write or read a bank's file."""
    from fewtune.bank.exchange import export_bank, import_bank
    from fewtune.machine.fingerprint import detect_fingerprint
    from fewtune.model.registration import check_name
    from fewtune.util.files import whole_directory
    from stages.params import load_section

    root, file = find_root(), Path(options.file)
    places = Places(root)
    fingerprint = detect_fingerprint(load_section("fingerprint", path=places.params))
    if options.action == "export":
        if options.best < 1:
            raise InputError(f"--best {options.best}: give a number from 1 on")
        told = export_bank(
            root / options.logs, file, fingerprint, licence=options.licence, best=options.best
        )
        print(f"{file}: {told.schedules} schedules of {told.workloads} workloads")
        return 0
    name = options.name or file.stem
    check_name(name)
    folder = places.banked_logs / name
    if folder.exists() or folder.is_symlink():
        raise InputError(f"{shown(folder)} is there already: give another --name, or remove it")
    with whole_directory(folder) as scratch:
        told = import_bank(file, fingerprint, scratch)
    print(f"{shown(folder)}: {told.schedules} schedules of {told.workloads} workloads")
    print(f"licence: {told.licence}")
    print("use it with: fewtune run MODEL --set build_bank.selective.logs=bank")
    return 0


def predictor(options: argparse.Namespace) -> int:
    """Train, list or describe predictors."""
    from fewtune.predictor.pretrained import read_conditions
    from pipelines.commands.predictor import (
        known_predictors,
        predictor_called,
        predictor_table,
        train,
    )

    if options.action == "train":
        train(
            options.models,
            options.hold_out,
            Path(options.output),
            given=[Path(file) for file in options.samples],
            kept=None if options.keep is None else Path(options.keep),
        )
        return 0
    try:
        places = Places(find_root())
    except InputError:
        places = Places()  # those that come with fewtune are known anywhere
    if options.action == "list":
        predictor_table(known_predictors(places)).print()
        return 0
    told = read_conditions(predictor_called(options.name, places))
    told.pop("features")
    print(json.dumps(told, indent=2, sort_keys=True))
    return 0


def compare(options: argparse.Namespace) -> int:
    """Put recorded results side by side."""
    root = find_root()
    from pipelines.records.compare import compare as compare_recorded

    table, lines = compare_recorded(root, options.results)
    table.print()
    for line in lines:
        print(line)
    return 0


def watch(options: argparse.Namespace) -> int:
    """Compare the latest recorded results with those before them."""
    root = find_root()
    from pipelines.records.fleet import write_page
    from pipelines.records.watch import watch as watch_recorded
    from pipelines.records.watch import watch_table

    watched = watch_recorded(root, options.models or None, options.fleet)
    watch_table(watched).print()
    folder = Places(root).scratch / "fleet" if options.page is None else Path(options.page)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--page {folder} is no folder: give one that both files go to")
    for path in write_page(watched, folder):
        print(f"  {shown(path)}")
    lines = [each.line() for each in watched if each.is_slower]
    for line in lines:
        say(f"fewtune: {line}")
    return RegressionError.exit_code if lines else 0


def compile(options: argparse.Namespace) -> int:  # noqa: A001 (the command's name)
    """Compile a model for a GPU that is not here."""
    from fewtune.compile.device_code import compile_for_gpu, gpu_target
    from fewtune.model.source import add_model

    gpu_target(options.arch)
    root = find_root()
    places = Places(root)
    name, models = options.model, places.models
    shapes, dimensions = parse_shapes(options.shape), parse_dimensions(options.dimension)
    with tempfile.TemporaryDirectory(prefix="fewtune-") as scratch:
        if name not in places.registered():
            models = Path(scratch)
            name = add_model(options.model, models, None, shapes, 0, dimensions)
        elif shapes or dimensions:
            raise InputError(f"{name} is registered with its shapes: leave --shape out")
        output = Path(options.output or places.out / name / f"cuda-{options.arch}")
        made = compile_for_gpu(name, models, options.arch, output)
    print(
        f"{made.path}: {made.kernels} kernels, {made.unscheduled} unscheduled, device code for "
        f"{', '.join(f'sm_{each}' for each in made.architectures)}; not run on a GPU; the import "
        f"was checked on this CPU, relative error {made.relative_error:.1e}"
    )
    return 0


def worker(options: argparse.Namespace) -> int:
    """Become a Dask worker of a fleet."""
    from fewtune.fleet.worker import command
    from fewtune.machine.fingerprint import FingerprintOptions, detect_fingerprint

    if "://" not in options.scheduler:
        raise InputError(f"{options.scheduler!r} is no address: give tcp://HOST:8786 or tls://...")
    own = detect_fingerprint(FingerprintOptions())
    say(f"{own.device}, {own.threads} threads, for {options.scheduler}; Ctrl-C to end it")
    arguments = command(options.scheduler, options.options)
    os.execv(arguments[0], arguments)


def serve(options: argparse.Namespace) -> int:
    """Serve the deployments of prefect.yaml."""
    root = find_root()
    os.chdir(root)
    from pipelines.runs.serve import serve_deployments

    check_port(options.port, unless="PREFECT_API_URL")
    serve_deployments(root, options.cron, options.port)
    return 0


def ui(options: argparse.Namespace) -> int:
    """Serve MLflow's page."""
    root = find_root()
    from pipelines.checkout import environment

    uri = os.environ["MLFLOW_TRACKING_URI"]
    local = not uri.startswith(("http://", "https://"))
    if local:
        check_port(options.port)
    from pipelines.records.mlflow_view import address
    from pipelines.records.tracking import Store

    experiment_id = Store(root).experiment_id
    if local:
        page = address(f"http://{environment.LOCALHOST}:{options.port}", experiment_id)
        print(f"MLflow, in about 15 s, until Ctrl-C: {page}", flush=True)
        os.chdir(root)
        server = ["--host", environment.LOCALHOST, "--port", str(options.port), "--workers", "1"]
        command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", uri, *server]
        os.execv(sys.executable, command)
    print(f"MLflow: {address(uri, experiment_id)}")
    return 0
