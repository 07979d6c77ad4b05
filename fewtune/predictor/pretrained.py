"""A predictor trained once, on tasks that belong to no model, and kept in a file.

The idea is the One-Shot Tuner's (Ryu et al. 2022): a model learns about schedules on a kind of
machine once, from sampled tasks, not again for each network. Here boosted trees use the decisions
alone (`fewtune.predictor.features`), and a run's measurements correct them
(`fewtune.predictor.predictor`). One file is xgboost's own, another holds the conditions as JSON;
nothing in either is executed.

The samples that it was trained on can be kept in a third file (`write_samples`), of numpy's plain
arrays, to train again without tuning again: with other trees, or more tasks.
"""

from __future__ import annotations

import importlib
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fewtune.errors import InputError
from fewtune.predictor import FLOATS, digest, files_of, shipped
from fewtune.predictor.feature_names import NAMES
from fewtune.process.apart import Job, at, run_apart
from fewtune.util.files import canonical_json, write_bytes, write_text


def xgboost_alone() -> Any:
    """The module, imported in a fraction of the time.

    By itself it imports its wrappers, and scipy's statistics with them, if they are installed:
    3 s at every start of a tuning process, for classes that are not used here.
    """
    if "xgboost" not in sys.modules:
        # Without its plots, it does without its wrapper for sklearn, which loads scipy.special.
        absent = {"sklearn", "pandas", "xgboost.plotting"} - sys.modules.keys()
        # Python does not import a module whose entry in this table is None.
        sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
        try:
            importlib.import_module("xgboost")
        finally:
            for name in absent:
                del sys.modules[name]
    return sys.modules["xgboost"]


# Speeds below this part of the best count as this part.
_SLOWEST = 0.22
# The order of fast schedules matters most: one at half the best speed gets an eighth of the weight.
_KEENNESS = 3.0
_PARAMETERS = {
    "max_depth": 5,
    "eta": 0.06,
    "subsample": 0.7,
    "colsample_bynode": 0.5,
    "min_child_weight": 3,
    "tree_method": "hist",
    "max_bin": 64,
    "nthread": 1,
    "seed": 0,
}
_ROUNDS = 600
# XGBoost reads JSON, too, whose brackets it follows by recursion.
_BINARY = b"{L"
_AGAIN = "train it again with `fewtune predictor train`"


class TaskSamples(NamedTuple):
    """The measurements of one task.

    Attributes
    ----------
    features : ndarray, (trials, `NAMES`)
    times_s : ndarray, (trials,)
        Seconds, infinite where a trial failed; tuning logs hold no such trials.
    name : str
        What it computes, without what is fused to it: tasks of equal names are one task.
    products : str
        The data type of its products.
    """

    features: np.ndarray
    times_s: np.ndarray
    name: str = ""
    products: str = FLOATS


class Pretrained:
    """Boosted trees over the features of decisions.

    Parameters
    ----------
    booster : xgboost.Booster
    conditions : dict
        What it was trained on. ``lanes`` are the elements of the machine's vectors, ``threads`` is
        the number of threads. ``features`` names the features that it uses, all of `NAMES` unless
        given; ``products`` the data type of the products that it was trained on.
    """

    def __init__(self, booster: Any, conditions: dict[str, Any]) -> None:
        self._booster = booster
        self.conditions = conditions
        names = conditions.get("features", NAMES)
        self._places = [NAMES.index(name) for name in names]

    def expected(self, features: np.ndarray) -> np.ndarray:
        """Logarithms of speed relative to the task's best, (points,): 0 is the best there is."""
        known = np.ascontiguousarray(features[:, self._places])
        return np.asarray(self._booster.inplace_predict(known), dtype=float)

    @staticmethod
    def train(samples: Sequence[TaskSamples], conditions: dict[str, Any]) -> Pretrained:
        """Learn from the trials of many tasks.

        Parameters
        ----------
        samples : sequence of TaskSamples
            One for each task: speeds are relative to its best.
        conditions : dict
            Kept with the trees; needs ``lanes`` and ``threads``.
        """
        xgboost = xgboost_alone()
        labels = np.concatenate([log_speeds(each.times_s) for each in samples])
        matrix = xgboost.QuantileDMatrix(
            np.concatenate([each.features for each in samples]),
            label=labels,
            weight=np.exp(_KEENNESS * labels),
            max_bin=_PARAMETERS["max_bin"],
            nthread=1,
            feature_names=list(NAMES),
        )
        booster = xgboost.train(_PARAMETERS, matrix, num_boost_round=_ROUNDS)
        booster.feature_names = None
        return Pretrained(booster, {**conditions, "features": list(NAMES), "trials": len(labels)})

    def write(self, path: Path) -> None:
        """Write trees and conditions, each whole or not at all.

        Parameters
        ----------
        path : Path
            Without its ending.
        """
        trees = bytes(self._booster.save_raw("ubj"))
        trees_file, conditions_file = files_of(path)
        write_bytes(trees_file, trees)
        write_text(conditions_file, canonical_json({**self.conditions, "trees": digest(trees)}))

    @staticmethod
    def read(path: Path) -> Pretrained:
        """Read what `write` wrote, given the path without its ending.

        Raises
        ------
        InputError
            If it is missing, damaged, or has other features than these.
        """
        conditions = read_conditions(path)
        try:
            trees = files_of(path)[0].read_bytes()
        except OSError as fault:
            raise _unreadable(path, fault) from None
        if conditions.get("trees") != digest(trees):
            raise _damaged(path)
        if path not in shipped():
            # Others may have made it, and XGBoost checks little of what it reads.
            run_apart(TryOut(path=str(path.resolve())))
        return _loaded(trees, conditions)


def _loaded(trees: bytes, conditions: dict[str, Any]) -> Pretrained:
    booster = xgboost_alone().Booster({"nthread": 1})
    booster.load_model(bytearray(trees))
    return Pretrained(booster, conditions)


class TryOut(Job):
    """Reads a predictor's trees, and uses them."""

    advice: ClassVar[str] = _AGAIN
    path: str

    def run(self) -> None:
        path = Path(self.path)
        at(f"XGBoost was reading the pretrained predictor {path}")
        trees = files_of(path)[0].read_bytes()
        if not trees.startswith(_BINARY):
            raise _damaged(path)
        points = np.random.default_rng(0).uniform(-4, 20, (64, len(NAMES))).astype("float32")
        try:
            expected = _loaded(trees, read_conditions(path)).expected(points)
        except Exception as fault:
            raise _damaged(path) from fault
        if expected.shape != (len(points),) or not np.isfinite(expected).all():
            raise _damaged(path)


def read_conditions(path: Path) -> dict[str, Any]:
    """What a predictor was trained on, without its trees.

    Raises
    ------
    InputError
        As `Pretrained.read`.
    """
    try:
        conditions = json.loads(files_of(path)[1].read_text())
    except (OSError, ValueError, RecursionError) as fault:
        raise _unreadable(path, fault) from None
    known = conditions.get("features") if isinstance(conditions, dict) else None
    if not isinstance(known, list) or not known or not all(each in NAMES for each in known):
        raise InputError(f"the pretrained predictor {path} is of other features: {_AGAIN}")
    if not all(type(conditions.get(key)) is int for key in ("lanes", "threads")):
        raise _damaged(path)
    return dict(conditions)


def _unreadable(path: Path, fault: Exception) -> InputError:
    return InputError(f"cannot read the pretrained predictor {path}: {fault}")


def _damaged(path: Path) -> InputError:
    return InputError(f"the pretrained predictor {path} is damaged: {_AGAIN}")


def log_speeds(times_s: np.ndarray) -> np.ndarray:
    """Logarithms of speed relative to the best of several times; failures get the slowest."""
    best = np.min(times_s, initial=np.inf)
    if not np.isfinite(best):
        return np.full(len(times_s), np.log(_SLOWEST))
    return np.log(np.maximum(best / times_s, _SLOWEST))


# Conditions that samples of two files must share to be used together.
_ALIKE = ("device", "lanes", "tvm", "threads", "target")


def write_samples(path: Path, sampled: Sequence[TaskSamples], conditions: dict[str, Any]) -> None:
    """Write samples, whole or not at all; equal samples make equal files.

    Parameters
    ----------
    path : Path
    sampled : sequence of TaskSamples
    conditions : dict
        The conditions of the measurements, as `Pretrained.train` takes them.
    """
    counts = [len(each.times_s) for each in sampled]
    content = io.BytesIO()
    np.savez_compressed(
        content,
        conditions=np.array(json.dumps({**conditions, "features": list(NAMES)}, sort_keys=True)),
        shapes=np.array([each.name for each in sampled]),
        counts=np.array(counts),
        features=np.concatenate([each.features for each in sampled]).astype("float32"),
        times_s=np.concatenate([each.times_s for each in sampled]).astype("float64"),
    )
    write_bytes(path, content.getvalue())


def read_samples(path: Path) -> tuple[list[TaskSamples], dict[str, Any]]:
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
        known = list(conditions["features"])
    except Exception as fault:  # noqa: BLE001 (zipfile, zlib and numpy raise many classes)
        raise InputError(f"cannot read the samples {path}: {fault}") from None
    # Files of an earlier version have further features behind these.
    if known[: len(NAMES)] != list(NAMES):
        raise InputError(f"the samples {path} are of other features: practise again")
    if not counts or {len(features), len(times_s)} != {sum(counts)} or len(shapes) != len(counts):
        raise InputError(f"the samples {path} are damaged")
    ends = np.cumsum(counts)[:-1]
    of_tasks = np.split(features[:, : len(NAMES)], ends), np.split(times_s, ends), shapes
    kind = conditions.get("products", FLOATS)
    return [TaskSamples(*each, kind) for each in zip(*of_tasks, strict=True)], conditions


def require_alike(path: Path, conditions: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse samples that cannot be used together with others.

    Raises
    ------
    InputError
        If the machine, the number of threads or TVM's version differ.
    """
    for key in _ALIKE:
        if conditions.get(key) != wanted.get(key):
            raise InputError(
                f"the samples {path} have {key} {conditions.get(key)}, the others "
                f"{wanted.get(key)}: train one predictor of each"
            )
