"""Predictors: trained anew, listed, described (``fewtune predictor``).

Models have to be tuned in full: their logs are read from ``out/MODEL/full/tune``, and the predictor
learns from every task of a kind that it knows. ``--hold-out MODEL`` prints how good it is for
another fully tuned model; it then learns nothing from that model's shapes. A table compares the
best trial among the predictor's choices with the best of all trials, and with trials drawn at
random. ``--keep FILE.npz`` keeps the samples, a few hundred kilobytes. ``--samples FILE.npz`` also
learns from such a file, with or without models' logs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fewtune.artifacts import Fingerprint, TuneReport
from fewtune.errors import InputError
from fewtune.predictor import files_of, shipped
from fewtune.predictor.pretrained import (
    Pretrained,
    TaskSamples,
    read_conditions,
    thread_counts,
)
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
from fewtune.storage.database import read_database
from fewtune.storage.log_archive import require_own
from fewtune.task.extract import read_tasks
from fewtune.util.table import MISSING, Table, number
from pipelines.checkout.project import find_root
from pipelines.commands.show import tell
from stages.paths import Places

_TOP = (1, 2, 4, 8)
_DRAWN = 50
_SHIPPED = shipped()[0].parent


def predictor(options: argparse.Namespace) -> int:
    """Train, list or describe predictors."""
    if options.action == "train":
        train(
            options.models,
            options.hold_out,
            Path(options.output),
            given=[Path(file) for file in options.samples],
            kept=None if options.keep is None else Path(options.keep),
            most_trials=options.most_trials,
        )
        return 0
    try:
        places = Places(find_root())
    except InputError:
        places = Places()  # those that come with fewtune are known anywhere
    if options.action == "list":
        predictor_table(known_predictors(places)).print()
        return 0
    conditions = read_conditions(predictor_called(options.name, places))
    conditions.pop("features")
    print(json.dumps(conditions, indent=2, sort_keys=True))
    return 0


class Learnable(NamedTuple):
    """A task that was tuned in full.

    Attributes
    ----------
    shapes : str
        What it computes, without what is fused to it: operator, data and weights.
    weight : int
        How often it occurs in the model.
    samples : TaskSamples
    """

    shapes: str
    weight: int
    samples: TaskSamples


def learnable_of(model: str, places: Places) -> list[Learnable]:
    """The trials of full tuning for a model's tasks."""
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
            shapes = str((task.info.operator, str(task.info.shapes[:2])))
            found.append(Learnable(shapes, task.info.weight, samples))
    return found


def regret(pretrained: Pretrained, held_out: list[Learnable]) -> Table:
    """How much slower the best of a few trials is than the best of all, over a model's tasks."""
    random = np.random.default_rng(0)
    rated = [
        (each.weight, each.samples.times_s, pretrained.expected(each.samples.features))
        for each in held_out
    ]
    rows = []
    for top in _TOP:
        found, drawn, best = 0.0, 0.0, 0.0
        for weight, times_s, speeds in rated:
            order = np.argsort(-speeds, kind="stable")
            lots = [times_s[random.permutation(len(times_s))[:top]].min() for _ in range(_DRAWN)]
            found += weight * times_s[order[:top]].min()
            drawn += weight * float(np.mean(lots))
            best += weight * times_s.min()
        rows.append([str(top), number(found / best), number(drawn / best)])
    return Table(["chosen", "by the predictor", "at random"], rows)


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
    models: list[str],
    left_out: list[str],
    output: Path,
    *,
    given: Sequence[Path] = (),
    kept: Path | None = None,
    most_trials: int | None = None,
) -> None:
    """Train a predictor on models, write it, and print how good it is for those left out.

    Parameters
    ----------
    models, left_out : list of str
        Tuned in full here.
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
    held_out = {model: learnable_of(model, places) for model in left_out}
    unseen = {each.shapes for tasks in held_out.values() for each in tasks}
    for model, tasks in held_out.items():
        if not tasks:
            raise InputError(f"{model} has no task that a predictor could be held to")
    stored = [(path, *read_samples(path)) for path in given]
    conditions = {**(stored[0][2] if stored else {}), **(_conditions(places) if models else {})}
    counts = {conditions["threads"]} if conditions else set()
    taught: list[str] = []
    found: list[Sampled] = []
    for path, earlier, own in stored:
        require_alike(path, own, conditions)
        counts |= set(thread_counts(own))
        taught += own.get("models", [])
        found += earlier
    for model in models:
        found += [Sampled(each.shapes, each.samples) for each in learnable_of(model, places)]
    learnt = [each for each in found if each.shapes not in unseen]
    if not learnt:
        raise InputError(
            "nothing is left to learn from: name models tuned in full, or give --samples"
        )
    if most_trials is not None:
        learnt = at_most(usual_first(learnt, np.random.default_rng(0)), most_trials)
    conditions |= {"models": taught + models, "held_out": left_out, "tasks": len(learnt)}
    if len(counts) > 1:
        conditions |= {"threads": max(counts), "thread_counts": sorted(counts)}
        conditions["target"] = {**conditions["target"], "num-cores": max(counts)}
    if kept is not None:
        write_samples(kept, learnt, conditions)
    pretrained = Pretrained.train([each.samples for each in learnt], conditions)
    pretrained.write(output)
    tell(f"{output}: {pretrained.conditions['trials']} trials of {len(learnt)} tasks")
    for model, tasks in held_out.items():
        tell(f"\n{model}, time beside the best of all trials:\n")
        print(regret(pretrained, tasks).markdown())


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
