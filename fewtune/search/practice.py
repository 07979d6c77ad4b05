"""A predictor of one's own: trained on models that were tuned in full, or on samples of such."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fewtune.artifacts import Fingerprint, TuneReport
from fewtune.errors import InputError
from fewtune.predictor.pretrained import Pretrained, thread_counts
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


class Tuned(NamedTuple):
    """Folders of a model's tasks, and of the log of their full tuning."""

    tasks: Path
    log: Path


def learnable_of(tuned: Tuned, fingerprint: Fingerprint) -> list[Sampled]:
    """The trials of full tuning for a model's tasks, by what each computes unfused."""
    require_own(tuned.log, fingerprint)
    is_cold = TuneReport.read(tuned.log).cold_weights
    database = read_database(tuned.log)
    tasks = [t for t in read_tasks(tuned.tasks) if database.has_workload(t.mod)]
    trials = measured_trials(database, tasks)
    found = []
    for task in tasks:
        space = SearchSpace(task.mod, target_from_json(fingerprint.target))
        samples = task_samples(space, trials[task.info.name], is_cold=is_cold)
        if samples is not None:
            found.append(Sampled(str((task.info.operator, str(task.info.shapes[:2]))), samples))
    return found


def train(
    models: Mapping[str, Tuned],
    fingerprint: Fingerprint | None,
    given: Sequence[Path] = (),
    kept: Path | None = None,
    most_trials: int | None = None,
) -> Pretrained:
    """Train a predictor on models that were tuned in full, and on samples kept earlier.

    Parameters
    ----------
    models : mapping of str to Tuned
    fingerprint : Fingerprint, optional
        Of the machine that tuned them.
    given : sequence of Path
        Files of kept samples.
    kept : Path, optional
        File in which to keep the samples.
    most_trials : int, optional
        Learn from at most so many, of the most usual shapes first.

    Raises
    ------
    InputError
        If there is nothing to learn from, or not all of it is of one kind of machine.
    """
    stored = [(path, *read_samples(path)) for path in given]
    conditions = dict(stored[0][2]) if stored else {}
    if fingerprint is not None:
        conditions |= _conditions(fingerprint)
    counts = {conditions["threads"]} if conditions else set()
    taught: list[str] = []
    learnt: list[Sampled] = []
    for path, earlier, own in stored:
        require_alike(path, own, conditions)
        counts |= set(thread_counts(own))
        taught += own.get("models", [])
        learnt += earlier
    if fingerprint is not None:
        for tuned in models.values():
            learnt += learnable_of(tuned, fingerprint)
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
    return Pretrained.train([each.samples for each in learnt], conditions)


def _conditions(fingerprint: Fingerprint) -> dict[str, Any]:
    """The conditions of measurements on a machine."""
    return {
        "device": fingerprint.device,
        "target": json.loads(fingerprint.target),
        "tvm": fingerprint.versions.get("apache-tvm", ""),
        "threads": fingerprint.threads,
        "lanes": CpuTraits.of(target_from_json(fingerprint.target)).lanes("float32"),
    }
