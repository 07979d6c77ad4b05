"""The graph network as a cost model of a run: taught by its trials, pretrained where there is more.

The label of a candidate is the logarithm of its speed relative to the best of its task, as for the
decision predictor. Each training starts from the network's present weights. With `pretrain`, the
first one starts from weights trained on other tasks.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import tvm_ffi

from fewtune.research.graph_network import Graph, GraphNetwork
from fewtune.research.program_graph import KINDS, WIDTH, program_graph
from fewtune.runtime.tvm import ms, tvm

_WARM_UP = 16
# Networks of different initial weights err elsewhere: the score is their mean.
_NETWORKS = 3
# It is trained again when samples have grown by this part, on at most so many of the latest.
_GROWTH, _MOST = 0.2, 512
# Speeds below this part of the best count as this part.
_SLOWEST = 0.1
_STEPS, _STEPS_AGAIN, _STEPS_OF_MANY = 150, 60, 600


class GraphModel:
    """Rates candidates by their programs' graphs; one for all tasks of a run.

    Parameters
    ----------
    seed : int
        Of the networks' first weights.
    """

    def __init__(self, seed: int = 43) -> None:
        self._networks = [GraphNetwork(WIDTH, KINDS, seed + each) for each in range(_NETWORKS)]
        self._extractor = ms.feature_extractor.PerStoreFeature()
        self._groups: dict[Hashable, tuple[list[Graph], list[float]]] = {}
        self._samples = self._fitted = 0
        self._is_pretrained = False

    @property
    def trained(self) -> bool:
        """Whether scores mean anything."""
        return self._is_pretrained or self._samples >= _WARM_UP

    def features(self, context: Any, candidates: Sequence[Any]) -> list[Graph]:
        """Graphs of candidates."""
        stores = self._extractor.extract_from(context, candidates)
        return [
            program_graph(candidate.sch.mod, rows.numpy())
            for candidate, rows in zip(candidates, stores, strict=True)
        ]

    def learn(
        self, module: tvm.IRModule, features: Sequence[Graph], times_s: Sequence[float]
    ) -> None:
        """Take in measured candidates of one task; seconds are infinite for one that failed."""
        self.learn_groups({tvm_ffi.structural_hash(module): (features, times_s)})

    def learn_groups(self, groups: dict[Hashable, tuple[Sequence[Graph], Sequence[float]]]) -> None:
        """Take in measured candidates of several tasks."""
        for key, (graphs, times_s) in groups.items():
            known = self._groups.setdefault(key, ([], []))
            known[0].extend(graphs)
            known[1].extend(times_s)
            self._samples += len(graphs)

    def pretrain(
        self,
        groups: dict[Hashable, tuple[Sequence[Graph], Sequence[float]]],
        steps: int = _STEPS_OF_MANY,
    ) -> None:
        """Learn from the trials of other tasks, before a run."""
        labelled = _labelled(list(groups.values()))
        if labelled:
            self._train(labelled, steps)
            self._is_pretrained = True

    def score(self, features: Sequence[Graph]) -> np.ndarray:
        """Scores of candidates, (candidates,), higher is faster; only of a trained model."""
        if self._samples >= max(_WARM_UP, (1 + _GROWTH) * self._fitted):
            labelled = _labelled([(g[-_MOST:], t[-_MOST:]) for g, t in self._groups.values()])
            is_begun = bool(self._fitted) or self._is_pretrained
            if labelled:
                self._train(labelled, _STEPS_AGAIN if is_begun else _STEPS)
            self._fitted = self._samples
        return np.mean([each.score(features) for each in self._networks], axis=0)

    def _train(self, labelled: list[tuple[Sequence[Graph], np.ndarray]], steps: int) -> None:
        for each in self._networks:
            each.train(labelled, steps)


def _labelled(
    groups: Sequence[tuple[Sequence[Graph], Sequence[float]]],
) -> list[tuple[Sequence[Graph], np.ndarray]]:
    """Graphs of all tasks, and the logarithms of their speeds relative to their task's best."""
    found = []
    for held, times_s in groups:
        best_s = min(times_s, default=np.inf)
        if np.isfinite(best_s):
            speeds = np.log(np.maximum(best_s / np.array(times_s), _SLOWEST))
            found.append((held, speeds))
    return found
