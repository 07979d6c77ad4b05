"""The pretrained predictor, corrected by what a run measures itself."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from fewtune.errors import InputError
from fewtune.predictor import AUTO, NEVER
from fewtune.predictor.pretrained import Pretrained
from fewtune.predictor.residual import Residual
from fewtune.schedule.blocks import CpuTraits
from fewtune.tvm_runtime import tvm


class Predictor:
    """Expected paces of one run's candidates; one for all its tasks.

    What was measured here is predicted, too, and what is left over is learnt: what holds on this
    machine, or for these tasks, and did not where the predictor was trained. How fast a task is
    altogether is no part of that.

    Parameters
    ----------
    pretrained : Pretrained
    """

    def __init__(self, pretrained: Pretrained) -> None:
        self.pretrained = pretrained
        self._residual = Residual()

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
        if len(features):
            expected = self.pretrained.expected(features)
            self._residual.learn(task, features, np.array(times_s), expected)

    def expected(self, task: Hashable, features: np.ndarray) -> np.ndarray:
        """Logarithms of the pace beside the best of the task, (candidates,)."""
        return self.pretrained.expected(features) + self._residual.correction(task, features)


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
