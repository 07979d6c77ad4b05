"""Samples that a predictor was trained on, kept in a file to train again without tuning again.

Tuning logs of practice tasks take tens of megabytes, and a machine may not be available later.
Their features and times take a few hundred kilobytes. From these, trees of another kind can be
trained, or the same trees with more tasks. The file is numpy's ``.npz`` of plain arrays; nothing in
it is executed.
"""

from __future__ import annotations

import ast
import io
import json
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fewtune.errors import InputError
from fewtune.predictor.feature_names import NAMES, OF_POINTS, with_cores
from fewtune.predictor.pretrained import TaskSamples
from fewtune.util.files import write_bytes

# The most frequent planes of networks for images of 224 to 512; the usual step of channels.
_PLANES, _STEP = frozenset({7, 13, 14, 26, 28, 52, 56, 104, 112}), 32
_IMAGE_RANK = 4


def is_usual(task: Sampled) -> bool:
    """Whether networks have many tasks of such shapes.

    Parameters
    ----------
    task : Sampled
        Its shapes are text: the operator, then those of data and weights. A product of matrices
        counts by its columns alone.
    """
    _, shapes = ast.literal_eval(task.shapes)
    data, weights = ast.literal_eval(shapes)
    extents = data[1:-1] if len(data) == _IMAGE_RANK else []
    return all(each in _PLANES for each in extents) and weights[-1] % _STEP == 0


def usual_first(tasks: Sequence[Sampled], random: np.random.Generator) -> list[Sampled]:
    """Tasks in the order to learn from them: usual ones, then others, each group shuffled."""
    mixed = [tasks[int(place)] for place in random.permutation(len(tasks))]
    return sorted(mixed, key=lambda task: not is_usual(task))


def at_most(tasks: Sequence[Sampled], trials: int) -> list[Sampled]:
    """The first tasks with at most so many trials together; at least one task."""
    kept: list[Sampled] = []
    for task in tasks:
        trials -= len(task.samples.times_s)
        if kept and trials < 0:
            break
        kept.append(task)
    return kept


# What numpy raises if a file is empty, cut off, changed, or holds another array.
_UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
)
# Conditions that samples of two files must share to be used together.
_ALIKE = ("device", "lanes", "tvm")


class Sampled(NamedTuple):
    """A task, and its measurements.

    Attributes
    ----------
    shapes : str
        What it computes, without what is fused to it: tasks of equal shapes are one task.
    samples : TaskSamples
    """

    shapes: str
    samples: TaskSamples


def write_samples(path: Path, sampled: Sequence[Sampled], conditions: dict[str, Any]) -> None:
    """Write samples, whole or not at all; equal samples make equal files.

    Parameters
    ----------
    path : Path
    sampled : sequence of Sampled
    conditions : dict
        The conditions of the measurements, as `Pretrained.train` takes them.
    """
    counts = [len(each.samples.times_s) for each in sampled]
    content = io.BytesIO()
    np.savez_compressed(
        content,
        conditions=np.array(json.dumps({**conditions, "features": list(NAMES)}, sort_keys=True)),
        shapes=np.array([each.shapes for each in sampled]),
        counts=np.array(counts),
        features=np.concatenate([each.samples.features for each in sampled]).astype("float32"),
        times_s=np.concatenate([each.samples.times_s for each in sampled]).astype("float64"),
    )
    write_bytes(path, content.getvalue())


def read_samples(path: Path) -> tuple[list[Sampled], dict[str, Any]]:
    """Read what `write_samples` wrote: samples and their conditions.

    Raises
    ------
    InputError
        If it is missing, damaged, or has other features than these.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            conditions = json.loads(str(stored["conditions"]))
            shapes, counts = stored["shapes"].tolist(), stored["counts"].tolist()
            features, times_s = stored["features"], stored["times_s"]
        known = conditions.get("features")
    except _UNREADABLE as fault:
        raise InputError(f"cannot read the samples {path}: {fault}") from None
    if known not in (list(NAMES), list(OF_POINTS)):
        raise InputError(f"the samples {path} are of other features: practise again")
    if len(features) != sum(counts) or len(times_s) != sum(counts) or len(shapes) != len(counts):
        raise InputError(f"the samples {path} are damaged")
    if known == list(OF_POINTS):
        # Files from before the feature of threads hold samples of one number of threads.
        features = with_cores(features, conditions["threads"])
    ends = np.cumsum(counts)
    found = [
        Sampled(name, TaskSamples(features[end - count : end], times_s[end - count : end]))
        for name, count, end in zip(shapes, counts, ends, strict=True)
    ]
    return found, conditions


def require_alike(path: Path, conditions: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse samples that cannot be used together with others.

    Raises
    ------
    InputError
        If the machine or TVM's version differ. Numbers of threads may.
    """
    for key in _ALIKE:
        _require(path, key, conditions.get(key), wanted.get(key))
    _require(path, "target", _processor(conditions), _processor(wanted))


def _require(path: Path, key: str, found: Any, wanted: Any) -> None:
    if found != wanted:
        raise InputError(
            f"the samples {path} have {key} {found}, the others {wanted}: train one predictor of "
            "each"
        )


def _processor(conditions: dict[str, Any]) -> dict[str, Any]:
    """The target without its number of threads."""
    return {k: v for k, v in conditions.get("target", {}).items() if k != "num-cores"}
