"""Adaptive sampling: measure the centres of clusters of candidates, not all of them.

Method: Ahn et al. 2020, "Chameleon: Adaptive Code Optimization for Expedited Deep Neural Network
Compilation", section 4. The candidates of a search lie in clumps. K-means over their decisions
finds them; the number of clusters is where another one saves too little. Only the candidate next to
each centre is measured. If that one was measured already, a candidate made of the most frequent
decisions takes its place. So a batch may be smaller than allowed: the saved trials are left for
later batches.
"""

from __future__ import annotations

import warnings
from collections import Counter

import numpy as np

from fewtune.schedule.space.design_space import Decision, Point
from fewtune.search.evolutionary import EvolutionarySearch
from fewtune.search.scorer import Proposal

# The least loss that one more cluster has to save, as a part of the loss of one cluster.
_KNEE = 0.02


class AdaptiveSampling(EvolutionarySearch):
    """Measures the centres of clusters among the candidates of evolutionary search."""

    made_for_each = 2

    def select(self, pool: list[Proposal], scores: np.ndarray, count: int) -> list[Proposal]:
        """One candidate for each cluster of the better part of the pool."""
        if len(pool) <= 2 or not self.judge.trained:
            return pool[:count]
        order = np.argsort(-scores, kind="stable")[: max(count, len(pool) // 2)]
        kept = [pool[int(i)] for i in order]
        places = embedded([proposal.point for proposal in kept])
        centres = _centres(places, count, int(self.random.integers(2**31)))
        chosen: dict[Point, Proposal] = {}
        for centre in centres:
            nearest = kept[int(np.argmin(((places - centre) ** 2).sum(axis=1)))]
            if nearest.point in chosen:
                for proposal in self.gather(lambda: _typical(kept, self.random), 1, set(chosen)):
                    chosen[proposal.point] = proposal
            else:
                chosen[nearest.point] = nearest
        return list(chosen.values())[:count]


def embedded(points: list[Point]) -> np.ndarray:
    """Points as vectors, (points, dimensions): the program, then logarithms of tiles' factors."""

    def numbers(decision: Decision | None) -> list[float]:
        if isinstance(decision, tuple):
            return [float(np.log2(factor)) for factor in decision]
        return [float(decision or 0)]

    rows = [[float(p.program), *(n for d in p.decisions for n in numbers(d))] for p in points]
    # Programs may have different numbers of choices.
    widest = max(len(row) for row in rows)
    return np.asarray([row + [0.0] * (widest - len(row)) for row in rows])


def _centres(places: np.ndarray, most: int, seed: int) -> np.ndarray:
    """Centres of k-means; k is where another cluster saves less than `_KNEE` of the loss."""
    # Imported late: it takes as long as tuning a small task, and other strategies do not need it.
    from sklearn.cluster import KMeans

    distinct = len(np.unique(places, axis=0))
    whole = float(((places - places.mean(axis=0)) ** 2).sum())
    centres, loss = places[:1], whole
    for clusters in sorted({max(2, most // 2), max(2, 3 * most // 4), most}):
        if clusters > distinct:
            break
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = KMeans(clusters, n_init=2, random_state=seed % 2**31).fit(places)
        saved = (loss - float(fitted.inertia_)) / max(whole, 1e-12)
        grown = clusters - len(centres)
        centres, loss = fitted.cluster_centers_, float(fitted.inertia_)
        if saved / max(grown, 1) < _KNEE / most:
            break
    return centres


def _typical(kept: list[Proposal], random: np.random.Generator) -> Point:
    """A point whose decisions are drawn by their frequency among the candidates."""
    program = Counter(proposal.point.program for proposal in kept).most_common(1)[0][0]
    family = [p.point.decisions for p in kept if p.point.program == program]
    drawn = [int(i) for i in random.integers(len(family), size=len(family[0]))]
    return Point(program, tuple(family[i][place] for place, i in enumerate(drawn)))
