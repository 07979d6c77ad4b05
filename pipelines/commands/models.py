"""What `fewtune check`, `add`, `zoo` and `compile` do."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fewtune.errors import InputError
from fewtune.model.registration import name_of
from fewtune.process.contexts import without_gc
from pipelines.arguments.values import parse_constants, parse_dimensions, parse_shapes
from pipelines.checkout.project import find_root
from pipelines.checkout.run_lock import turn
from pipelines.commands.show import say, shown
from pipelines.dvc_repo.track import Tracker, model_files
from stages.paths import Places


def add(options: argparse.Namespace) -> int:
    """Register a model."""
    shapes, dimensions = parse_shapes(options.shape), parse_dimensions(options.dimension)
    constants = parse_constants(options.constant)
    inputs = None if options.inputs is None else Path(options.inputs)
    name_of(options.source, options.name)
    # DVC, and the modules for registering, load while another process checks the model.
    with Tracker(find_root()) as tracker, loading("fewtune.model.source"):
        if not options.no_check:
            from fewtune.model_check.job import CheckJob
            from pipelines.commands.check import refuse_unless_ok

            job = CheckJob(
                model=options.source,
                shapes=shapes,
                dimensions=dimensions,
                constants=constants,
                inputs=inputs,
                seed=options.seed,
            )
            refuse_unless_ok(job, find_root())
        sources, tracked = {options.source: options.name}, tracker.track
        given = (dimensions, options.replace, constants, inputs)
        return _register(sources, shapes, options.seed, *given, tracked=tracked)


@contextlib.contextmanager
def loading(module: str) -> Iterator[None]:
    """Import a module while the block runs."""

    def load() -> None:
        with without_gc():
            importlib.import_module(module)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        yield
    finally:
        # A process that ends in the middle of an import may crash.
        thread.join()


def check(options: argparse.Namespace) -> int:
    """Print what a run would do with a model."""
    from fewtune.model_check.job import CheckJob
    from pipelines.commands.check import check_source

    try:
        root = find_root()
    except InputError:
        root = None  # a model can be checked anywhere
    job = CheckJob(
        model=options.source,
        shapes=parse_shapes(options.shape),
        dimensions=parse_dimensions(options.dimension),
        constants=parse_constants(options.constant),
        inputs=options.inputs,
        seed=options.seed,
    )
    report = check_source(job, root)
    if options.json:
        print(json.dumps(report.as_json()))
    elif report.ok:
        print("\n".join(report.lines()))
    else:
        say("\n".join(["fewtune: " + report.lines()[0], *report.lines()[1:]]))
    return report.exit_code


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
    """Register models, each under its given or own name, and list them in params.yaml.

    ``tracked`` puts their files under DVC, and returns the reason if it cannot.
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


def compile(options: argparse.Namespace) -> int:
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
