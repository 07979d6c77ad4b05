"""The pretrained predictor, corrected by a run's own measurements.

The predictor was trained on other tasks, maybe on another machine. Its error for a candidate is
estimated from its errors for measured candidates, weighted by the similarity of their decisions
(kriging; Rasmussen and Williams 2006, chapter 2). The covariance is a sum of two kernels: one for
errors that all tasks on this machine have in common, one for errors of a single task. A few trials
correct little, so it needs no warm-up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fewtune.errors import InputError
from fewtune.predictor import AUTO, FLOATS, NEVER, PREDEFINED, shipped
from fewtune.predictor.feature_names import NAMES
from fewtune.predictor.predefined import Predefined
from fewtune.predictor.pretrained import Pretrained, read_conditions
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import has_feature, tvm
from fewtune.util.switches import is_on

# Features of decisions. Those before them are constant in a task.
_DECISIONS = slice(NAMES.index("elements"), None)
# Standard deviations of logarithms of speed: the predictor's error that all tasks have in common,
# its further error for one task, and the error of measurements. They come from replaying full
# tuning's trials of SqueezeNet and DenseNet 121 on a machine that the predictor does not know. Half
# or twice as much makes little difference.
_COMMON, _OWN, _NOISE = 0.1, 0.1, 0.07
# Length scales of the two kernels. Each feature is scaled by its spread over a task's candidates,
# but at least by this.
_COMMON_LENGTH, _OWN_LENGTH = 6.0, 4.0
_LEAST_SPREAD = 0.25
# Standard deviation of a task's offset: its best possible time is not known.
_OFFSET = 0.5
# Larger errors come from failed measurements.
_MOST_OFF = 1.0
# A candidate at half the speed of the best counts about a third: the order of fast ones matters.
_KEENNESS, _SLOWEST = 1.5, -3.0
# It is fitted again when samples have grown by this part, to at most so many.
_GROWTH, _MOST_SAMPLES = 0.05, 1024


class Residual:
    """Corrects the predictor's expectations by the measurements of one run.

    Attributes
    ----------
    samples : int
        Measured candidates that it has learnt from.
    """

    def __init__(self) -> None:
        # By task: features of decisions, speed, and predicted speed.
        self._groups: dict[Hashable, list[tuple[np.ndarray, float, float]]] = {}
        self.samples = self._fitted_samples = 0

    def learn(
        self, task: Hashable, features: np.ndarray, times_s: np.ndarray, expected: np.ndarray
    ) -> None:
        """Take in measured candidates of a task.

        Parameters
        ----------
        task : hashable
            Identifies the task: only times of one task are compared.
        features : ndarray, (candidates, `NAMES`)
        times_s : ndarray, (candidates,)
            Seconds; a candidate that failed says nothing of speed.
        expected : ndarray, (candidates,)
            Their predicted speeds, as logarithms.
        """
        for row, time_s, speed in zip(features, times_s, expected, strict=True):
            if np.isfinite(time_s):
                sample = np.asarray(row[_DECISIONS], dtype=float), -np.log(time_s), speed
                self._groups.setdefault(task, []).append(sample)
                self.samples += 1

    def correction(self, task: Hashable, features: np.ndarray) -> np.ndarray:
        """What to add to the expected logarithms of a task's candidates' speeds, (candidates,)."""
        if not self.samples or not is_on("correction"):
            return np.zeros(len(features))
        if self.samples > (1 + _GROWTH) * self._fitted_samples:
            self._fit()
        own = self._tasks == [*self._groups, task].index(task)
        apart = _apart(features[:, _DECISIONS] / self._spreads, self._rows)
        found = _alike(apart, _COMMON, _COMMON_LENGTH) @ self._weights
        found += _alike(apart[:, own], _OWN, _OWN_LENGTH) @ self._weights[own]
        # Values that differ only by rounding are ties.
        return np.round(found, 6)

    def _fit(self) -> None:
        self._fitted_samples = self.samples
        # The fastest samples matter most; more of them than this are not worth the fitting time.
        most = self.samples if self.samples <= _MOST_SAMPLES else 0
        most = most or max(1, _MOST_SAMPLES // len(self._groups))
        rows, tasks, left, noise = [], [], [], []
        squares, freedom = np.zeros(len(NAMES[_DECISIONS])), 0
        for number, group in enumerate(self._groups.values()):
            features, measured, expected = map(np.array, zip(*group, strict=True))
            # The fastest, in the order in which they came.
            kept = np.sort(np.argsort(-measured, kind="stable")[:most])
            speeds = measured[kept]
            counts = np.exp(_KEENNESS * np.maximum(speeds - speeds.max(), _SLOWEST))
            off = speeds - expected[kept]
            left.append(np.clip(off - np.average(off, weights=counts), -_MOST_OFF, _MOST_OFF))
            noise.append(_NOISE**2 / counts)
            rows.append(features[kept])
            squares += ((rows[-1] - rows[-1].mean(axis=0)) ** 2).sum(axis=0)
            freedom += len(kept) - 1
            tasks.append(np.full(len(kept), number))
        self._spreads = np.maximum(np.sqrt(squares / max(1, freedom)), _LEAST_SPREAD)
        self._rows, self._tasks = np.concatenate(rows) / self._spreads, np.concatenate(tasks)
        apart = _apart(self._rows, self._rows)
        own = self._tasks[:, None] == self._tasks[None, :]
        covariance = _alike(apart, _COMMON, _COMMON_LENGTH)
        covariance += own * (_alike(apart, _OWN, _OWN_LENGTH) + _OFFSET**2)
        covariance[np.diag_indices(len(covariance))] += np.concatenate(noise)
        self._weights = np.linalg.solve(covariance, np.concatenate(left))


def _apart(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Squares of distances, (some, others)."""
    squares = (some**2).sum(axis=1)[:, None] + (others**2).sum(axis=1)[None, :]
    return np.maximum(squares - 2 * some @ others.T, 0.0)


def _alike(apart: np.ndarray, size: float, length: float) -> np.ndarray:
    """Covariance by squares of distances (squared exponential)."""
    return size**2 * np.exp(-apart / (2 * length**2))


# The weight of the nearest machine's predictor.
_NEAREST = 0.5
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
        self.conditions = own.conditions
        self._own = own
        self._others = list(others)

    def expected(self, features: np.ndarray) -> np.ndarray:
        """Logarithms of speed relative to the task's best, (points,), less the penalties."""
        speeds = self._own.expected(features)
        if self._others:
            others = np.mean([each.expected(features) for each in self._others], axis=0)
            speeds = _NEAREST * speeds + (1 - _NEAREST) * others
        return speeds - sum(risk * features[:, place] for place, risk in _RISKY)


Rating: TypeAlias = Pretrained | Consensus | Predefined
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
    of_kinds : dict, optional
        Those that were trained for one data type of products alone.
    """

    def __init__(self, pretrained: Rating, of_kinds: Mapping[str, Rating] | None = None) -> None:
        self.pretrained, self._of_kinds = pretrained, of_kinds or {}
        # Products of bytes err in other ways than those of floats.
        self._residuals: defaultdict[str, Residual] = defaultdict(Residual)

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
            expected = self.of_kind(kind).expected(features)
            self._residuals[kind].learn(task, features, np.array(times_s), expected)

    def expected(self, task: Hashable, features: np.ndarray, kind: str = FLOATS) -> np.ndarray:
        """Logarithms of the speed relative to the best of the task, (candidates,)."""
        correction = self._residuals[kind].correction(task, features)
        return self.of_kind(kind).expected(features) + correction

    def of_kind(self, kind: str) -> Rating:
        """What rates products of a data type."""
        return self._of_kinds.get(kind, self.pretrained)


def predictor_for(choice: str, target: tvm.target.Target) -> Predictor | None:
    """The predictor of a run.

    Parameters
    ----------
    choice : str
        `AUTO`, `NEVER`, `PREDEFINED` (the analytic model), or a path without its ending. `AUTO`
        takes a predictor that comes with the library, for the target's vectors, and trained with
        as many threads: that of the same CPU, else of the same maker, else any.
    target : Target

    Returns
    -------
    predictor : Predictor or None
        None if there is none for the target.

    Raises
    ------
    InputError
        If the path holds no predictor, or one for other vectors than the target's.
    """
    if choice == NEVER or "cpu" not in list(target.keys):
        return None
    if choice == PREDEFINED:
        return Predictor(Predefined.of(target))
    lanes = CpuTraits.of(target).lanes("float32")
    if choice == AUTO:
        return _shipped_for(target, lambda own, others: own)
    pretrained = Pretrained.read(Path(choice))
    # A predictor for another number of threads is the user's choice.
    if lanes == pretrained.conditions["lanes"]:
        return Predictor(pretrained)
    raise InputError(
        f"the pretrained predictor {choice} is for vectors of {pretrained.conditions['lanes']} "
        f"elements, and the target's have {lanes}: name another one, auto or never"
    )


def consensus_for(choice: str, target: tvm.target.Target) -> Predictor | None:
    """The predictor for unmeasured choices: with `AUTO`, the mean of all that fit the target.

    Raises
    ------
    InputError
        As `predictor_for`.
    """
    return _shipped_for(target, Consensus) if choice == AUTO else predictor_for(choice, target)


def _shipped_for(
    target: tvm.target.Target, joined: Callable[[Pretrained, list[Pretrained]], Rating]
) -> Predictor | None:
    """The library's predictors for such vectors and threads, the nearest CPU's and the others.

    One that was trained on products of bytes rates these together with those of floats: for 223
    practice tasks of a Zen 5, of tasks held out, the first choice took 1.24 times the best trial by
    floats' alone, 1.17 by bytes' alone, and 1.12 by both.
    """
    # `lanes` is eight on other CPUs too, though their vectors are shorter.
    if "cpu" not in list(target.keys) or not has_feature(target, _KNOWN_VECTORS):
        return None
    traits, name = CpuTraits.of(target), str(target.attrs.get("mcpu", ""))
    conditions = [(path, read_conditions(path)) for path in shipped()]
    found: dict[str, list[Pretrained]] = {}
    for path, known in sorted(conditions, key=lambda each: -_kinship(name, each[1])):
        if (known["lanes"], known["threads"]) == (traits.lanes("float32"), traits.threads):
            found.setdefault(known.get("products", FLOATS), []).append(Pretrained.read(path))
    floats = found.pop(FLOATS, [])
    of_kinds = {kind: Consensus(known[0], floats) for kind, known in found.items()}
    return Predictor(joined(floats[0], floats[1:]), of_kinds) if floats else None


def is_trained_on(pretrained: Rating, target: tvm.target.Target) -> bool:
    """Whether a predictor was trained on this CPU, by LLVM's name."""
    return _kinship(str(target.attrs.get("mcpu", "")), pretrained.conditions) == _SAME


def extrapolated(pretrained: Rating, target: tvm.target.Target) -> str:
    """A warning if a predictor was not trained on the target's number of threads; else empty."""
    known, threads = pretrained.conditions.get("threads"), CpuTraits.of(target).threads
    if known in (None, threads):
        return ""
    return (
        f"the predictor learnt from runs of {known} thread{'s' * (known != 1)}: for {threads} "
        f"its ratings are extrapolated, and nobody measured what they are worth"
    )


def _kinship(name: str, conditions: dict[str, Any]) -> int:
    """The kinship of a predictor's CPU with another one, by LLVM's names."""
    trained_on = str(conditions.get("target", {}).get("mcpu", ""))
    if trained_on == name:
        return _SAME
    return int(trained_on.startswith(_AMD) == name.startswith(_AMD))
