"""A Gaussian process that corrects the pretrained predictor by a run's own trials.

The predictor was trained on other tasks, maybe on another machine. Its error for a candidate is
estimated from its errors for measured candidates, weighted by the similarity of their decisions
(kriging; Rasmussen and Williams 2006, chapter 2). The covariance is a sum of two kernels: one for
errors that all tasks on this machine have in common, one for errors of a single task. A few trials
correct little, so it needs no warm-up.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from fewtune.predictor.feature_names import NAMES, OF_POINTS
from fewtune.util.switches import is_on

# Features of decisions. Those before them are constant in a task. Those of cores, behind them, are
# constant in a run, or follow from others.
_DECISIONS = slice(NAMES.index("elements"), len(OF_POINTS))
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


class _Group:
    """Samples of one task: features of decisions, speeds, and predicted speeds."""

    def __init__(self) -> None:
        self.rows: list[np.ndarray] = []
        self.speeds: list[float] = []
        self.expected: list[float] = []

    def fastest(self, most: int) -> np.ndarray:
        """Places of the fastest samples, in the order in which they came."""
        order = np.argsort(-np.array(self.speeds), kind="stable")
        return np.sort(order[:most])


class Residual:
    """Corrects the predictor's expectations by the measurements of one run.

    Attributes
    ----------
    samples : int
        Measured candidates that it has learnt from.
    """

    def __init__(self) -> None:
        self._groups: dict[Hashable, _Group] = {}
        self.samples = self._fitted_samples = 0
        self._rows = np.empty((0, len(NAMES[_DECISIONS])))
        self._spreads = np.ones(len(NAMES[_DECISIONS]))
        self._tasks: np.ndarray = np.empty(0, dtype=int)
        self._weights = np.empty(0)

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
                group = self._groups.setdefault(task, _Group())
                group.rows.append(np.asarray(row[_DECISIONS], dtype=float))
                group.speeds.append(-float(np.log(time_s)))
                group.expected.append(float(speed))
                self.samples += 1

    def correction(self, task: Hashable, features: np.ndarray) -> np.ndarray:
        """What to add to the expected logarithms of a task's candidates' speeds, (candidates,)."""
        if self.samples > (1 + _GROWTH) * self._fitted_samples:
            self._fit()
        if not len(self._rows) or not is_on("correction"):
            return np.zeros(len(features))
        own = self._tasks == self._number(task)
        apart = _apart(features[:, _DECISIONS] / self._spreads, self._rows)
        found = _alike(apart, _COMMON, _COMMON_LENGTH) @ self._weights
        found += _alike(apart[:, own], _OWN, _OWN_LENGTH) @ self._weights[own]
        # Values that differ only by rounding are ties.
        return np.round(found, 6)

    def _number(self, task: Hashable) -> int:
        return list(self._groups).index(task) if task in self._groups else -1

    def _fit(self) -> None:
        self._fitted_samples = self.samples
        # The fastest samples matter most; more of them than this are not worth the fitting time.
        most = self.samples if self.samples <= _MOST_SAMPLES else 0
        most = most or max(1, _MOST_SAMPLES // len(self._groups))
        rows, tasks, left, noise = [], [], [], []
        squares, freedom = np.zeros(len(self._spreads)), 0
        for number, group in enumerate(self._groups.values()):
            kept = group.fastest(most)
            speeds = np.array(group.speeds)[kept]
            counts = np.exp(_KEENNESS * np.maximum(speeds - speeds.max(), _SLOWEST))
            off = speeds - np.array(group.expected)[kept]
            left.append(np.clip(off - np.average(off, weights=counts), -_MOST_OFF, _MOST_OFF))
            noise.append(_NOISE**2 / counts)
            rows.append(np.stack(group.rows)[kept])
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
