"""The pretrained predictor, corrected by a run's own measurements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fewtune.errors import InputError
from fewtune.predictor import AUTO, NEVER, PREDEFINED, shipped
from fewtune.predictor.feature_names import NAMES
from fewtune.predictor.gaussian_process import Residual
from fewtune.predictor.predefined import Predefined
from fewtune.predictor.pretrained import Pretrained, read_conditions, thread_counts
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import has_feature, tvm

# The weight of the nearest machine's predictor.
_OWN = 0.5
# Penalties, in logarithms of speed. Among all trials of five networks on a Zen 5 (106 tasks), the
# first choice took 1.30 times the best with its own predictor alone, 1.12 with a weight of one
# half, 1.09 with these penalties as well. With few trials, none of them far off, both cost
# something: for 518 practice tasks of a Zen 4, of shapes held out, the first choice took 1.10 times
# the best with its own predictor alone, 1.13 with both.
_RISKS = {"many": 0.1, "is_odd_vector": 0.15}
_RISKY = [(NAMES.index(name), risk) for name, risk in _RISKS.items()]


class Consensus:
    """Used in place of `Pretrained`.

    Parameters
    ----------
    own : Pretrained
        The nearest machine's: its training conditions are those of the consensus.
    others : sequence of Pretrained
        For vectors of as many elements.
    """

    def __init__(self, own: Pretrained, others: Sequence[Pretrained]) -> None:
        self._own = own
        self._others = list(others)

    @property
    def conditions(self) -> dict[str, Any]:
        """The conditions of the nearest machine's predictor."""
        return self._own.conditions

    @property
    def lanes(self) -> int:
        """Elements of a vector, float32."""
        return self._own.lanes

    @property
    def threads(self) -> int:
        """How many cores share the loops."""
        return self._own.threads

    def expected(self, features: np.ndarray) -> np.ndarray:
        """Logarithms of speed relative to the task's best, (points,), less the penalties."""
        speeds = self._own.expected(features)
        if self._others:
            others = np.mean([each.expected(features) for each in self._others], axis=0)
            speeds = _OWN * speeds + (1 - _OWN) * others
        return speeds - sum(risk * features[:, place] for place, risk in _RISKY)


# The data type of products of floats.
FLOATS = "float32"
# The CPU feature that the library's predictors need; AVX-512 includes it.
_KNOWN_VECTORS = "avx2"
# The prefix of LLVM's names of AMD's CPUs, since Zen.
_AMD = "znver"
# The kinship of a CPU with itself.
_SAME = 2


class Predictor:
    """Expected speeds of one run's candidates; one for all its tasks.

    It learns the differences between measured and predicted speeds: what holds on this machine or
    for these tasks, but not where the predictor was trained. A task's overall speed is no part of
    that.

    Parameters
    ----------
    pretrained : Pretrained, Consensus or Predefined
    """

    def __init__(self, pretrained: Pretrained | Consensus | Predefined) -> None:
        self.pretrained = pretrained
        # Products of bytes err in other ways than those of floats.
        self._residuals: defaultdict[str, Residual] = defaultdict(Residual)

    @property
    def samples(self) -> int:
        """Measured candidates that it has learnt from."""
        return sum(each.samples for each in self._residuals.values())

    def learn(
        self, task: Hashable, features: np.ndarray, times_s: Sequence[float], kind: str = FLOATS
    ) -> None:
        """Take in measured candidates.

        Parameters
        ----------
        task : hashable
            Identifies the task: only times of one task are compared.
        features : ndarray, (candidates, features)
        times_s : sequence of float
            Seconds; a candidate that failed says nothing of speed.
        kind : str
            The data type of the task's products. What one kind teaches does not serve another.
        """
        if len(features):
            expected = self.pretrained.expected(features)
            self._residuals[kind].learn(task, features, np.array(times_s), expected)

    def expected(self, task: Hashable, features: np.ndarray, kind: str = FLOATS) -> np.ndarray:
        """Logarithms of the speed relative to the best of the task, (candidates,)."""
        correction = self._residuals[kind].correction(task, features)
        return self.pretrained.expected(features) + correction


def predictor_for(choice: str, target: tvm.target.Target) -> Predictor | None:
    """The predictor of a run; None if there is none for the target.

    Raises
    ------
    InputError
        As `pretrained_for`.
    """
    pretrained = pretrained_for(choice, target)
    return None if pretrained is None else Predictor(pretrained)


def pretrained_for(choice: str, target: tvm.target.Target) -> Pretrained | Predefined | None:
    """The pretrained model, which a run corrects.

    Parameters
    ----------
    choice : str
        `AUTO`, `NEVER`, `PREDEFINED` (the analytic model), or a path without its ending. `AUTO`
        takes a predictor that comes with the library, for the target's vectors, and trained with
        as many threads or with several numbers of them: that of the same CPU, else of the same
        maker, else any.
    target : Target

    Returns
    -------
    pretrained : Pretrained, Predefined or None
        None if there is none for the target.

    Raises
    ------
    InputError
        If the path holds no predictor, or one for other vectors than the target's.
    """
    if choice == NEVER or "cpu" not in list(target.keys):
        return None
    if choice == PREDEFINED:
        return Predefined.of(target)
    lanes = CpuTraits.of(target).lanes("float32")
    if choice == AUTO:
        fitting = _fitting(target)
        return Pretrained.read(fitting[0]) if fitting else None
    pretrained = Pretrained.read(Path(choice))
    # A predictor for another number of threads is the user's choice.
    if lanes == pretrained.lanes:
        return pretrained
    raise InputError(
        f"the pretrained predictor {choice} is for vectors of {pretrained.lanes} elements, and the "
        f"target's have {lanes}: name another one, auto or never"
    )


def consensus_for(choice: str, target: tvm.target.Target) -> Predictor | None:
    """The predictor for unmeasured choices: with `AUTO`, the mean of all that fit the target.

    Raises
    ------
    InputError
        As `pretrained_for`.
    """
    fitting = _fitting(target) if choice == AUTO and "cpu" in list(target.keys) else []
    if not fitting:
        return predictor_for(choice, target)
    own, *others = (Pretrained.read(path) for path in fitting)
    return Predictor(Consensus(own, others))


def _fitting(target: tvm.target.Target) -> list[Path]:
    """The library's predictors for such vectors and threads, the nearest CPU's first."""
    # `lanes` is eight on other CPUs too, though their vectors are shorter.
    if not has_feature(target, _KNOWN_VECTORS):
        return []
    traits = CpuTraits.of(target)
    conditions = {path: read_conditions(path) for path in shipped()}
    name = str(target.attrs.get("mcpu", ""))

    def knows_threads(path: Path) -> bool:
        return traits.threads in thread_counts(conditions[path])

    fitting = [
        path
        for path in conditions
        if conditions[path]["lanes"] == traits.lanes("float32")
        # A predictor trained on several numbers of threads can extrapolate to another one.
        and (knows_threads(path) or len(thread_counts(conditions[path])) > 1)
    ]
    return sorted(fitting, key=lambda p: (not knows_threads(p), -_kinship(name, conditions[p])))


def is_trained_on(
    pretrained: Pretrained | Consensus | Predefined, target: tvm.target.Target
) -> bool:
    """Whether a predictor was trained on this CPU, by LLVM's name."""
    return _kinship(str(target.attrs.get("mcpu", "")), pretrained.conditions) == _SAME


def extrapolated(pretrained: Pretrained | Consensus | Predefined, target: tvm.target.Target) -> str:
    """A warning if a predictor was not trained on the target's number of threads; else empty."""
    known = pretrained.conditions
    threads = CpuTraits.of(target).threads
    if isinstance(pretrained, Predefined) or threads in thread_counts(known):
        return ""
    counts = " and ".join(map(str, thread_counts(known)))
    return (
        f"the predictor learnt from runs of {counts} thread{'s' * (counts != '1')}: for {threads} "
        f"its ratings are extrapolated, and nobody measured what they are worth"
    )


def _kinship(name: str, conditions: dict[str, Any]) -> int:
    """The kinship of a predictor's CPU with another one, by LLVM's names."""
    trained_on = str(conditions.get("target", {}).get("mcpu", ""))
    if trained_on == name:
        return _SAME
    return int(trained_on.startswith(_AMD) == name.startswith(_AMD))
