"""A boosted-tree cost model over MetaSchedule's per-store features.

The model is the one of AutoTVM and MetaSchedule (Chen et al. 2018, "Learning to Optimize Tensor
Programs"): a kernel's score is the sum of the trees' values over its buffer stores; the label is
the task's best time over the candidate's. It differs from stock ``XGBModel``: it is used from 16
samples on, not 100; it grows a bounded number of shallow histogram trees; and it is trained again
only when the data has grown by a certain part. All three save time without a visible loss at the
budgets of selective tuning.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

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

    def learn_groups(self, groups: Any, /) -> None:
        """Take in measured candidates of several tasks, in one training."""

    def score(self, features: Any, /) -> np.ndarray:
        """Higher is faster, (candidates,)."""


class CostModelOptions(NamedTuple):
    """Size of the model and how often it is trained."""

    warm_up_samples: int = 16
    rounds: int = 40
    max_depth: int = 6
    learning_rate: float = 0.2
    retrain_growth: float = 0.20
    threads: int = 1
    seed: int = 43


class _Group:
    """Features and times of one workload's candidates."""

    def __init__(self) -> None:
        self.features: list[np.ndarray] = []
        self.times_s: list[float] = []

    def labels(self) -> np.ndarray:
        times = np.asarray(self.times_s)
        best = times.min()
        return (
            np.where(np.isfinite(times), best / times, 0.0)
            if np.isfinite(best)
            else np.zeros_like(times)
        )


def _pack(features: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Stack the stores of all candidates; the second array holds the candidate of each row."""
    owners = np.repeat(np.arange(len(features)), [len(rows) for rows in features])
    return np.concatenate(features, axis=0), owners


class TreeScores:
    """The trees themselves, without TVM: fit on (features, labels), predict scores.

    Parameters
    ----------
    options : CostModelOptions
    """

    def __init__(self, options: CostModelOptions) -> None:
        self.options = options
        self._booster: xgboost.Booster | None = None

    @property
    def trained(self) -> bool:
        return self._booster is not None

    def fit(self, features: list[np.ndarray], labels: np.ndarray) -> None:
        """Train from scratch.

        Parameters
        ----------
        features : list of ndarray, each (stores, 164)
        labels : ndarray, (candidates,)
            1 for a task's best candidate, 0 for one that failed.
        """
        xgboost = xgboost_alone()
        rows, owners = _pack(features)
        matrix = xgboost.QuantileDMatrix(
            rows, max_bin=64, nthread=self.options.threads, label=labels[owners]
        )
        target = labels[owners]
        # Fast candidates matter most; a failed one still has to pull its score down.
        weight = np.maximum(target, 0.05)

        def squared_error(prediction: np.ndarray, _: Any) -> tuple[np.ndarray, np.ndarray]:
            summed = np.bincount(owners, weights=prediction, minlength=len(labels))
            return (summed[owners] - target) * weight, weight

        self._booster = xgboost.train(
            {
                "max_depth": self.options.max_depth,
                "eta": self.options.learning_rate,
                "gamma": 0.001,
                "min_child_weight": 0,
                "nthread": self.options.threads,
                "seed": self.options.seed,
                "tree_method": "hist",
                "max_bin": 64,
                "base_score": 0.0,
            },
            matrix,
            num_boost_round=self.options.rounds,
            obj=squared_error,
            verbose_eval=False,
        )

    def predict(self, features: list[np.ndarray]) -> np.ndarray:
        """Scores of candidates, higher is faster; ``features`` as in `fit`."""
        assert self._booster is not None
        rows, owners = _pack(features)
        scores = self._booster.inplace_predict(rows, predict_type="margin")
        return np.bincount(owners, weights=scores, minlength=len(features))


@tvm.ir.utils.derived_object
class BoostedTrees(ms.cost_model.PyCostModel):
    """The cost model as MetaSchedule's search calls it; one for all tasks of a run."""

    def __init__(self, options: CostModelOptions = CostModelOptions()) -> None:  # noqa: B008
        super().__init__()
        self.options = options
        self.trees = TreeScores(options)
        self.extractor = ms.feature_extractor.PerStoreFeature()
        self.groups: dict[Hashable, _Group] = {}
        self.samples = 0
        self.trained_samples = 0
        self._is_due = False
        self.random = np.random.default_rng(options.seed)

    def load(self, path: str) -> None:
        raise NotImplementedError("the model is trained from the tuning log, never loaded")

    def save(self, path: str) -> None:
        raise NotImplementedError("the model is trained from the tuning log, never saved")

    def update(self, context: Any, candidates: Any, results: Any) -> None:
        """Does nothing: the tuning loop calls `learn`."""

    def learn(self, module: tvm.IRModule, features: list[np.ndarray], times_s: list[float]) -> None:
        """Take in measured candidates of one task; trees are trained anew when they have grown.

        Parameters
        ----------
        module : IRModule
            The task's workload; labels are relative to its best time.
        features : list of ndarray, each (stores, 164)
        times_s : list of float
            Seconds, infinite for a candidate that failed.
        """
        self.learn_groups({tvm_ffi.structural_hash(module): (features, times_s)})

    def learn_groups(
        self, groups: Mapping[Hashable, tuple[Sequence[np.ndarray], Sequence[float]]]
    ) -> None:
        """Take in measured candidates of several tasks; trees are trained at most once for them.

        Parameters
        ----------
        groups : mapping
            Features and seconds as for `learn`, by a key of the task. Labels are relative to the
            best time of a group, so a group holds the times of one session.
        """
        for key, (features, times_s) in groups.items():
            for rows, time_s in zip(features, times_s, strict=True):
                if len(rows):
                    # A group is made only if it has samples: labels need a best time.
                    group = self.groups.setdefault(key, _Group())
                    group.features.append(rows)
                    group.times_s.append(time_s)
                    self.samples += 1
        if self.samples - self.trained_samples < self.options.retrain_growth * self.trained_samples:
            return
        self.trained_samples = self.samples
        self._is_due = self.samples >= self.options.warm_up_samples

    @property
    def trained(self) -> bool:
        """Whether scores mean anything."""
        return self._is_due or self.trees.trained

    def _train(self) -> None:
        """Train if that is due; called before the first use, which may never come."""
        if not self._is_due:
            return
        self._is_due, self.trained_samples = False, self.samples
        everything = [rows for known in self.groups.values() for rows in known.features]
        labels = np.concatenate([known.labels() for known in self.groups.values()])
        self.trees.fit(everything, labels.astype("float64"))

    def predict(self, context: Any, candidates: Any) -> np.ndarray:
        """Scores, (candidates,), for TVM's own search; random until the model is trained."""
        if not self.trained:
            return self.random.uniform(size=len(candidates))
        return self.score(self.features(context, candidates))

    def score(self, features: list[np.ndarray]) -> np.ndarray:
        """Scores of candidates by their features; only of a trained model."""
        self._train()
        empty = np.zeros((1, 164), dtype="float32")
        return self.trees.predict([rows if len(rows) else empty for rows in features])

    def features(self, context: Any, candidates: Any) -> list[np.ndarray]:
        """Features of candidates, each (stores, 164)."""
        extracted = self.extractor.extract_from(context, candidates)
        return [tensor.numpy().astype("float32") for tensor in extracted]
