"""A boosted-tree cost model over MetaSchedule's per-store features.

The model is the one of AutoTVM and MetaSchedule (Chen et al. 2018, "Learning to Optimize Tensor
Programs"): a kernel's score is the sum of the trees' values over its buffer stores; the label is
the task's best time over the candidate's. It differs from stock ``XGBModel``: it is used from 16
samples on, not 100; it grows a bounded number of shallow histogram trees; and it is trained again
only when the data has grown by a certain part. All three save time without a visible loss at the
budgets of selective tuning.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import tvm_ffi

from fewtune.predictor.pretrained import xgboost_alone
from fewtune.runtime.tvm import ms, tvm

if TYPE_CHECKING:
    import xgboost


class CostModel(Protocol):
    """Rates candidates by features that it extracts itself."""

    @property
    def trained(self) -> bool:
        """Whether it has learnt enough to rate."""

    def features(self, context: Any, candidates: Any, /) -> list[Any]:
        """The features of each candidate."""

    def learn(self, module: tvm.IRModule, features: Any, times_s: Any, /) -> None:
        """Take in measured candidates of a task; a failed one took infinitely long."""

    def score(self, features: Any, /) -> np.ndarray:
        """Higher is faster, (candidates,)."""


# Samples from which on a model rates; the part by which they have grown when it is fitted again.
_WARM_UP, _GROWTH = 16, 0.2


class LearntModel:
    """Learns from measured candidates, those of a task in a group; fitted when it is first used."""

    def __init__(self) -> None:
        super().__init__()
        self.extractor = ms.feature_extractor.PerStoreFeature()
        self.groups: dict[Hashable, tuple[list[np.ndarray], list[float]]] = {}
        self.samples = self._fitted = 0

    @property
    def trained(self) -> bool:
        """Whether scores mean anything."""
        return self.samples >= _WARM_UP

    def learn(
        self, module: tvm.IRModule, features: Sequence[np.ndarray], times_s: Sequence[float]
    ) -> None:
        """Take in measured candidates of one task.

        Parameters
        ----------
        module : IRModule
            The task's workload; labels are relative to its best time.
        features : sequence of ndarray
        times_s : sequence of float
            Seconds, infinite for a candidate that failed.
        """
        task = tvm_ffi.structural_hash(module)
        # A group is made only if it has samples: labels need a best time.
        for rows, time_s in (each for each in zip(features, times_s, strict=True) if len(each[0])):
            known = self.groups.setdefault(task, ([], []))
            known[0].append(rows)
            known[1].append(time_s)
            self.samples += 1

    def score(self, features: Sequence[np.ndarray]) -> np.ndarray:
        """Scores of candidates by their features, (candidates,); only of a trained model."""
        if self.samples - self._fitted >= _GROWTH * self._fitted:
            self._fitted = self.samples
            self.fit()
        return self.rated(features)

    def fit(self) -> None:
        """Learn from all groups."""
        raise NotImplementedError

    def rated(self, features: Sequence[np.ndarray]) -> np.ndarray:
        """Scores by the last fit."""
        raise NotImplementedError


_ROUNDS, _BINS, THREADS, _SEED = 40, 64, 1, 43
_PARAMETERS = {
    "max_depth": 6,
    "eta": 0.2,
    "gamma": 0.001,
    "min_child_weight": 0,
    "nthread": THREADS,
    "seed": _SEED,
    "tree_method": "hist",
    "max_bin": _BINS,
    "base_score": 0.0,
}


def _labels(times_s: Sequence[float]) -> np.ndarray:
    """1 for a task's best candidate, 0 for one that failed."""
    times, best = np.asarray(times_s), min(times_s)
    return best / times if np.isfinite(best) else np.zeros(len(times))


def _pack(features: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Stack the stores of all candidates; the second array holds the candidate of each row."""
    owners = np.repeat(np.arange(len(features)), [len(rows) for rows in features])
    return np.concatenate(features, axis=0), owners


@tvm.ir.utils.derived_object
class BoostedTrees(ms.cost_model.PyCostModel, LearntModel):
    """The cost model as MetaSchedule's search calls it; one for all tasks of a run."""

    _booster: xgboost.Booster

    def __init__(self) -> None:
        super().__init__()
        self._random = np.random.default_rng(_SEED)

    def update(self, context: Any, candidates: Any, results: Any) -> None:
        """Does nothing: the tuning loop calls `learn`."""

    def predict(self, context: Any, candidates: Any) -> np.ndarray:
        """Scores, (candidates,), for TVM's own search; random until the model is trained."""
        if not self.trained:
            return self._random.uniform(size=len(candidates))
        return self.score(self.features(context, candidates))

    def fit(self) -> None:
        """Train trees whose sum over a candidate's stores is near its label."""
        xgboost = xgboost_alone()
        rows, owners = _pack([each for known, _ in self.groups.values() for each in known])
        labels = np.concatenate([_labels(times_s) for _, times_s in self.groups.values()])
        target = labels[owners]
        matrix = xgboost.QuantileDMatrix(rows, max_bin=_BINS, nthread=THREADS, label=target)
        # Fast candidates matter most; a failed one still has to pull its score down.
        weight = np.maximum(target, 0.05)

        def squared_error(prediction: np.ndarray, _: Any) -> tuple[np.ndarray, np.ndarray]:
            summed = np.bincount(owners, weights=prediction, minlength=len(labels))
            return (summed[owners] - target) * weight, weight

        self._booster = xgboost.train(
            _PARAMETERS, matrix, num_boost_round=_ROUNDS, obj=squared_error, verbose_eval=False
        )

    def rated(self, features: Sequence[np.ndarray]) -> np.ndarray:
        empty = np.zeros((1, 164), dtype="float32")
        rows, owners = _pack([rows if len(rows) else empty for rows in features])
        scores = self._booster.inplace_predict(rows, predict_type="margin")
        return np.bincount(owners, weights=scores, minlength=len(features))

    def features(self, context: Any, candidates: Any) -> list[np.ndarray]:
        """Features of candidates, each (stores, 164)."""
        extracted = self.extractor.extract_from(context, candidates)
        return [tensor.numpy().astype("float32") for tensor in extracted]
