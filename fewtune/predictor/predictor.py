"""The pretrained predictor, corrected by what a run measures itself."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

import numpy as np

from fewtune.errors import InputError
from fewtune.predictor import AUTO, NEVER
from fewtune.predictor.pretrained import Pretrained
from fewtune.schedule.blocks import CpuTraits
from fewtune.trees import xgboost_alone
from fewtune.tvm_runtime import tvm

if TYPE_CHECKING:
    import xgboost

# A correction is learnt from so many trials of so many tasks on, and anew when trials have grown by
# this part: of a few tasks, what is left over is mostly theirs, and misleads about others.
_WARM_UP, _LEAST_TASKS, _GROWTH = 192, 8, 0.25
_PARAMETERS = {
    "max_depth": 3,
    "eta": 0.1,
    "lambda": 32.0,
    "subsample": 0.8,
    "colsample_bynode": 0.5,
    "tree_method": "hist",
    "max_bin": 32,
    "base_score": 0.0,
    "nthread": 1,
    "seed": 0,
}
_ROUNDS = 30


class Predictor:
    """Expected paces of one run's candidates; one for all its tasks.

    What was measured here is predicted, too, and the rest that is left over is learnt by a few
    small trees: what holds on this machine, or for these tasks, and did not where the predictor was
    trained. How fast a task is altogether is no part of that.

    Parameters
    ----------
    pretrained : Pretrained
    """

    def __init__(self, pretrained: Pretrained) -> None:
        self.pretrained = pretrained
        self._groups: dict[Hashable, list[tuple[np.ndarray, float, float]]] = {}
        self._samples = self._trained_samples = 0
        self._correction: xgboost.Booster | None = None

    def learn(self, task: Hashable, features: np.ndarray, times_s: list[float]) -> None:
        """Take in measured candidates.

        Parameters
        ----------
        task : hashable
            What tells tasks apart: only times of one task are compared.
        features : ndarray, (candidates, features)
        times_s : list of float
            Seconds; a candidate that failed says nothing of paces.
        """
        if not len(features):
            return
        expected = self.pretrained.expected(features)
        for row, time_s, pace in zip(features, times_s, expected, strict=True):
            if np.isfinite(time_s):
                self._groups.setdefault(task, []).append((row, -np.log(time_s), pace))
                self._samples += 1

    def expected(self, features: np.ndarray) -> np.ndarray:
        """Logarithms of the pace beside the task's best, (candidates,)."""
        paces = self.pretrained.expected(features)
        self._train()
        if self._correction is None:
            return paces
        return paces + np.asarray(self._correction.inplace_predict(features), dtype=float)

    def _train(self) -> None:
        grown = self._samples - self._trained_samples
        if self._samples < _WARM_UP or len(self._groups) < _LEAST_TASKS:
            return
        if grown <= _GROWTH * self._trained_samples:
            return
        self._trained_samples = self._samples
        rows, left, weights = [], [], []
        for group in self._groups.values():
            # Candidates much slower than the best are no concern, and would decide otherwise.
            paces = np.array([pace for _, pace, _ in group])
            weight = np.exp(np.maximum(paces - paces.max(), -3.0) * 1.5)
            over = paces - np.array([expected for *_, expected in group])
            rows += [row for row, *_ in group]
            left.append(over - np.average(over, weights=weight))
            weights.append(weight)
        xgboost = xgboost_alone()
        matrix = xgboost.QuantileDMatrix(
            np.stack(rows),
            label=np.clip(np.concatenate(left), -1.0, 1.0),
            weight=np.concatenate(weights),
            max_bin=_PARAMETERS["max_bin"],
            nthread=1,
        )
        self._correction = xgboost.train(_PARAMETERS, matrix, num_boost_round=_ROUNDS)


def predictor_for(choice: str, target: tvm.target.Target) -> Predictor | None:
    """The predictor of a run.

    Parameters
    ----------
    choice : str
        `AUTO`: the one that comes with the library, where it knows the target's vectors and was
        trained with as many threads; `NEVER`; or the path of another one, without its ending.
    target : Target

    Returns
    -------
    predictor : Predictor or None
        None where there is none for the target.

    Raises
    ------
    InputError
        If a path names none, or one for other vectors than the target's.
    """
    if choice == NEVER or "cpu" not in list(target.keys):
        return None
    pretrained, traits = Pretrained.read(choice), CpuTraits.of(target)
    lanes = traits.lanes("float32")
    if choice == AUTO:
        is_known = (lanes, traits.threads) == (pretrained.lanes, pretrained.threads)
        return Predictor(pretrained) if is_known else None
    # How loops are cut among another number of threads is for whoever names it to judge.
    if lanes == pretrained.lanes:
        return Predictor(pretrained)
    raise InputError(
        f"the pretrained predictor {choice} is for vectors of {pretrained.lanes} elements, and the "
        f"target's have {lanes}: name another one, auto or never"
    )
