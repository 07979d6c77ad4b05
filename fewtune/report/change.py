"""Whether two measurements of a latency differ by more than their noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Self

_LEAST_RUNS = 3
_NORMAL = statistics.NormalDist()
# The difference of two draws has a standard deviation larger by the root of two. Its median
# absolute value is the third quartile.
_HALF_WIDTH_PER_STEP = _NORMAL.inv_cdf(0.9) / (_NORMAL.inv_cdf(0.75) * math.sqrt(2))


@dataclass(frozen=True)
class Latency:
    """A latency with its spread over the rounds, and onnxruntime's in the same rounds.

    Attributes
    ----------
    median_ms, p10_ms, p90_ms : float
    reference_ms : float or None
        onnxruntime's median in the same rounds; None on a board, where it does not run.
    reference : str
        Its version.
    """

    median_ms: float
    p10_ms: float
    p90_ms: float
    reference_ms: float | None
    reference: str

    @classmethod
    def of_run(cls, data: Any) -> Self:
        """The latency in the data of a run in MLflow."""
        figures = data.metrics
        return cls(
            figures["latency_ms"],
            figures["latency_p10_ms"],
            figures["latency_p90_ms"],
            figures.get("onnxruntime_latency_ms"),
            data.params.get("machine.versions.onnxruntime", ""),
        )

    @property
    def noise(self) -> float:
        """Half of the way from the tenth to the ninetieth percentile, over the median."""
        return (self.p90_ms - self.p10_ms) / 2 / self.median_ms


@dataclass(frozen=True)
class Change:
    """The change of a latency.

    Attributes
    ----------
    ratio : float
        Latency now over latency before.
    noise : float
        The combined noise of both measurements, as a part of the latency.
    between : float or None
        The spread of earlier runs, at the same level; None if there are too few of them.
    beside : float or None
        The ratio of latencies over onnxruntime's; None if that is of another version.
    verdict : str
        ``slower`` or ``faster`` by more than the noise, ``machine`` if onnxruntime changed as
        much, else ``same``.
    """

    ratio: float
    noise: float
    beside: float | None
    verdict: Literal["slower", "faster", "same", "machine"]
    between: float | None = None


def between_runs(medians_ms: Sequence[float]) -> float | None:
    """The noise between runs without any change, as a part of the latency.

    A run's own rounds do not show it: each run tunes, compiles and places its memory anew. Each run
    is compared with the next one, and the median is taken, so that a single real change among them
    hardly counts.

    Parameters
    ----------
    medians_ms : sequence of float
        Of runs of one model and strategy on one machine with one set of versions, in their order.

    Returns
    -------
    noise : float or None
        Half of the way from the tenth to the ninetieth percentile of a normal distribution with
        that median difference; None for fewer than three runs.
    """
    if len(medians_ms) < _LEAST_RUNS:
        return None
    steps = [abs(math.log(now / before)) for before, now in pairwise(medians_ms)]
    return statistics.median(steps) * _HALF_WIDTH_PER_STEP


def changed(before: Latency, now: Latency, between: float | None = None) -> Change:
    """Compare two measurements of one model on one machine.

    A difference counts if it is larger than the root of the sum of squares of both noises, also
    relative to onnxruntime's latency: a slow machine slows both down.

    Parameters
    ----------
    before, now : Latency
    between : float, optional
        From `between_runs`: the noise of a measurement is at least that.
    """
    ratio = now.median_ms / before.median_ms
    least = between or 0.0
    noise = math.hypot(max(before.noise, least), max(now.noise, least))
    beside = None
    if before.reference == now.reference and before.reference_ms and now.reference_ms:
        beside = ratio * before.reference_ms / now.reference_ms
    moved = _direction(ratio, noise)
    if moved == "same" or beside is None or _direction(beside, noise) == moved:
        return Change(ratio, noise, beside, moved, between)
    return Change(ratio, noise, beside, "machine", between)


def _direction(ratio: float, noise: float) -> Literal["slower", "faster", "same"]:
    if ratio > 1 + noise:
        return "slower"
    return "faster" if ratio < 1 / (1 + noise) else "same"
