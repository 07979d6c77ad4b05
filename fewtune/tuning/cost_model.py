"""A boosted-tree cost model over MetaSchedule's per-store features.

The model is the one of AutoTVM and MetaSchedule (Chen et al. 2018, "Learning to Optimize Tensor
Programs"): a kernel's score is the sum over its buffer stores of what the trees say of each, the
label is the task's best time over the candidate's. Differences from stock ``XGBModel``: it is
used from 16 samples on, not 100; it grows a bounded number of shallow histogram trees; and it is
trained anew only when the data grew by a stated part. All three save time without a visible loss
at the budgets of selective tuning (`benchmarks/engine.py`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tvm_ffi
import xgboost

from fewtune.tvm_runtime import ms, tvm


class CostModelOptions(NamedTuple):
    """Size of the model and how often it is trained."""

    warm_up_samples: int = 16
    rounds: int = 60
    max_depth: int = 7
    learning_rate: float = 0.2
    retrain_growth: float = 0.10
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
        return np.where(np.isfinite(times), best / times, 0.0) if np.isfinite(best) else times * 0


def _pack(features: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Stack the stores of all candidates; the second array says whose each row is."""
    owners = np.repeat(np.arange(len(features)), [len(rows) for rows in features])
    return np.concatenate(features, axis=0), owners


class TreeScores:
    """The trees themselves, free of TVM: fit on (features, labels), predict scores.

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
        rows, owners = _pack(features)
        matrix = xgboost.QuantileDMatrix(
            rows, max_bin=64, nthread=self.options.threads, label=labels[owners]
        )
        target = labels[owners]
        # Fast candidates matter most; a failed one still has to pull its score down.
        weight = np.maximum(target, 0.05)

        def squared_error(
            prediction: np.ndarray, _: xgboost.DMatrix
        ) -> tuple[np.ndarray, np.ndarray]:
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
        self.groups: dict[int, _Group] = {}
        self.samples = 0
        self.trained_samples = 0
        self.random = np.random.default_rng(options.seed)

    def load(self, path: str) -> None:
        raise NotImplementedError("the model is trained from the tuning log, never loaded")

    def save(self, path: str) -> None:
        raise NotImplementedError("the model is trained from the tuning log, never saved")

    def update(self, context, candidates, results) -> None:  # noqa: ANN001
        """Take in measured candidates; ``results`` holds no time for one that failed."""
        if not candidates:
            return
        group = self.groups.setdefault(tvm_ffi.structural_hash(context.mod), _Group())
        for features, result in zip(self._features(context, candidates), results, strict=True):
            if len(features):
                group.features.append(features)
                times = [float(value) for value in result.run_secs or ()]
                group.times_s.append(float(np.median(times)) if times else float("inf"))
                self.samples += 1
        if self.samples - self.trained_samples < self.options.retrain_growth * self.trained_samples:
            return
        self.trained_samples = self.samples
        if self.samples >= self.options.warm_up_samples:
            features = [rows for known in self.groups.values() for rows in known.features]
            labels = np.concatenate([known.labels() for known in self.groups.values()])
            self.trees.fit(features, labels.astype("float64"))

    def predict(self, context, candidates) -> np.ndarray:  # noqa: ANN001
        """Scores of candidates, (candidates,); random until the model is trained."""
        if not self.trees.trained:
            return self.random.uniform(size=len(candidates))
        features = self._features(context, candidates)
        empty = np.zeros((1, 164), dtype="float32")
        return self.trees.predict([rows if len(rows) else empty for rows in features])

    def _features(self, context, candidates) -> list[np.ndarray]:  # noqa: ANN001
        extracted = self.extractor.extract_from(context, candidates)
        return [tensor.numpy().astype("float32") for tensor in extracted]
