"""The weighted mean of several predictors, for a choice that nothing measures.

The best of thousands of estimates is one that errs upwards. Predictors that were trained on other
machines err elsewhere: a schedule that only one of them rates high is a poor choice. The nearest
machine's predictor has a weight of one half, the others share the rest. Two kinds of tiles pay a
penalty for their risk: those with more accumulators than there are registers, and those whose
innermost loop is no whole number of vectors. Most are fine. Where the compiler spills them, or
splits their vectors, they take two to five times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fewtune.predictor.feature_names import NAMES
from fewtune.predictor.pretrained import Pretrained

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
