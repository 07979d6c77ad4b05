"""The similarities of a model's tasks. Drawing them is elsewhere, since it loads Matplotlib."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class SimilarityMatrix:
    """Similarities of the tasks that were compared.

    Parameters
    ----------
    names : tuple of str
        The tasks' names.
    values : numpy.ndarray
        Shape (tasks, tasks), symmetric, 0 to 1.
    """

    names: tuple[str, ...]
    values: np.ndarray

    def ordered(self, names: list[str]) -> SimilarityMatrix:
        """The same similarities with the tasks in another order."""
        places = [self.names.index(name) for name in names]
        return SimilarityMatrix(tuple(names), self.values[np.ix_(places, places)])
