"""Predictors: trained anew, listed, described (``fewtune predictor``).

Models have to be tuned in full: their logs are read from ``out/MODEL/full/tune``, and the predictor
learns from every task of a kind that it knows. ``--keep FILE.npz`` keeps the samples, a few hundred
kilobytes. ``--samples FILE.npz`` also learns from such a file, with or without models' logs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fewtune.artifacts import Fingerprint, TuneReport
from fewtune.errors import InputError
from fewtune.pipelines.checkout.project import find_root
from fewtune.pipelines.commands.show import show_json, tell
from fewtune.predictor import files_of, shipped
from fewtune.predictor.pretrained import Pretrained, read_conditions, thread_counts
from fewtune.predictor.training_samples import (
    Sampled,
    at_most,
    read_samples,
    require_alike,
    usual_first,
    write_samples,
)
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.target import target_from_json
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.search.warm_start import measured_trials, task_samples
from fewtune.stages.paths import Places
from fewtune.storage.database import read_database
from fewtune.storage.log_archive import require_own
from fewtune.task.extract import read_tasks
from fewtune.util.table import MISSING, Table

_SHIPPED = shipped()[0].parent


def predictor(options: argparse.Namespace) -> int:
    """Train, list or describe predictors."""
    if options.action == "train":
        given = [Path(file) for file in options.samples]
        kept = None if options.keep is None else Path(options.keep)
        train(options.models, Path(options.output), given, kept, options.most_trials)
        return 0
    try:
        places = Places(find_root())
    except InputError:
        places = Places()  # those that come with fewtune are known anywhere
    if options.action == "list":
        known = known_predictors(places)
        if options.json:
            show_json([{"predictor": str(path), **_told(path)} for path in known])
        else:
            predictor_table(known).print()
        return 0
    show_json(_told(predictor_called(options.name, places)))
    return 0


def _told(path: Path) -> dict[str, Any]:
    """What a predictor was trained on."""
    conditions = read_conditions(path)
    conditions.pop("features")
    return dict(sorted(conditions.items()))


def learnable_of(model: str, places: Places) -> list[Sampled]:
    """The trials of full tuning for a model's tasks, by what each computes unfused."""
    fingerprint = Fingerprint.read(places.fingerprint)
    target = target_from_json(fingerprint.target)
    directory = places.tuned(model, "full")
    require_own(directory, fingerprint)
    is_cold = TuneReport.read(directory).cold_weights
    database = read_database(directory)
    tasks = [t for t in read_tasks(places.tasks(model)) if database.has_workload(t.mod)]
    trials = measured_trials(database, tasks)
    found = []
    for task in tasks:
        space = SearchSpace(task.mod, target)
        samples = task_samples(space, trials[task.info.name], is_cold=is_cold)
        if samples is not None:
            found.append(Sampled(str((task.info.operator, str(task.info.shapes[:2]))), samples))
    return found


def predictor_table(paths: Sequence[Path]) -> Table:
    """One row for each predictor: what it was trained on."""
    rows = []
    for path in paths:
        conditions = read_conditions(path)
        rows.append(
            [
                str(path) if path.parent != _SHIPPED else path.name,
                str(conditions.get("device", MISSING)),
                str(conditions.get("target", {}).get("mcpu", MISSING)),
                str(conditions["lanes"]),
                ", ".join(map(str, thread_counts(conditions))),
                *(str(conditions.get(key, MISSING)) for key in ("tasks", "trials")),
            ]
        )
    headings = ["predictor", "trained on", "CPU", "lanes", "threads", "tasks", "trials"]
    return Table(headings, rows, frozenset({0, 1, 2}))


def known_predictors(places: Places) -> list[Path]:
    """The predictors that come with the library, and those of the checkout; without endings."""
    own = sorted(file.with_suffix("") for file in places.predictors.glob("*.json"))
    return [*shipped(), *own]


def predictor_called(name: str, places: Places) -> Path:
    """A predictor by its name or its path without an ending.

    Raises
    ------
    InputError
        If there is none.
    """
    known = known_predictors(places)
    for path in known:
        if name in (path.name, str(path)):
            return path
    if files_of(Path(name))[1].is_file():
        return Path(name)
    names = ", ".join(path.name for path in known)
    raise InputError(f"there is no predictor {name}: give {names}, or a path without its ending")


def train(
    models: Sequence[str],
    output: Path,
    given: Sequence[Path] = (),
    kept: Path | None = None,
    most_trials: int | None = None,
) -> None:
    """Train a predictor on models that were tuned in full here, and write it.

    Parameters
    ----------
    models : sequence of str
    output : Path
        Of the predictor, without an ending.
    given : sequence of Path
        Files of kept samples to learn from as well.
    kept : Path, optional
        File in which to keep the samples.
    most_trials : int, optional
        Learn from at most so many, of the most usual shapes first.
    """
    if most_trials is not None and most_trials < 1:
        raise InputError(f"--most-trials is {most_trials}: give a number of trials from 1 on")
    places = Places()
    stored = [(path, *read_samples(path)) for path in given]
    conditions = {**(stored[0][2] if stored else {}), **(_conditions(places) if models else {})}
    counts = {conditions["threads"]} if conditions else set()
    taught: list[str] = []
    learnt: list[Sampled] = []
    for path, earlier, own in stored:
        require_alike(path, own, conditions)
        counts |= set(thread_counts(own))
        taught += own.get("models", [])
        learnt += earlier
    for model in models:
        learnt += learnable_of(model, places)
    if not learnt:
        raise InputError("there is nothing to learn from: name models tuned in full, or --samples")
    if most_trials is not None:
        learnt = at_most(usual_first(learnt, np.random.default_rng(0)), most_trials)
    conditions |= {"models": [*taught, *models], "tasks": len(learnt)}
    if len(counts) > 1:
        conditions |= {"threads": max(counts), "thread_counts": sorted(counts)}
        conditions["target"] = {**conditions["target"], "num-cores": max(counts)}
    if kept is not None:
        write_samples(kept, learnt, conditions)
    pretrained = Pretrained.train([each.samples for each in learnt], conditions)
    pretrained.write(output)
    tell(f"{output}: {pretrained.conditions['trials']} trials of {len(learnt)} tasks")


def _conditions(places: Places) -> dict[str, Any]:
    """The conditions of measurements on this machine."""
    fingerprint = Fingerprint.read(places.fingerprint)
    target = target_from_json(fingerprint.target)
    return {
        "device": fingerprint.device,
        "target": json.loads(fingerprint.target),
        "tvm": fingerprint.versions.get("apache-tvm", ""),
        "threads": fingerprint.threads,
        "lanes": CpuTraits.of(target).lanes("float32"),
    }
