"""Which practice tasks to learn from first: those of the shapes that networks have most.

The One-Shot Tuner (Ryu et al. 2022) draws its training tasks by such a prior. From as many trials,
a predictor learns more with the prior than with tasks drawn uniformly on a Zen 4 (rank correlation
0.05 higher on held-out schedules of usual shapes, 0.01 to 0.08), and no more on a Zen 3
(``docs/study.md``).
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

import numpy as np

from fewtune.predictor.training_samples import Sampled

# The most frequent planes of networks for images of 224 to 512; the usual step of channels.
_PLANES, _STEP = frozenset({7, 13, 14, 26, 28, 52, 56, 104, 112}), 32
_IMAGE_RANK = 4


def is_usual(task: Sampled) -> bool:
    """Whether networks have many tasks of such shapes.

    Parameters
    ----------
    task : Sampled
        Its shapes are text: the operator, then those of data and weights. A product of matrices
        counts by its columns alone.
    """
    _, shapes = ast.literal_eval(task.shapes)
    data, weights = ast.literal_eval(shapes)
    extents = data[1:-1] if len(data) == _IMAGE_RANK else []
    return all(each in _PLANES for each in extents) and weights[-1] % _STEP == 0


def usual_first(tasks: Sequence[Sampled], random: np.random.Generator) -> list[Sampled]:
    """Tasks in the order to learn from them: usual ones, then others, each group shuffled."""
    mixed = [tasks[int(place)] for place in random.permutation(len(tasks))]
    return sorted(mixed, key=lambda task: not is_usual(task))


def at_most(tasks: Sequence[Sampled], trials: int) -> list[Sampled]:
    """The first tasks with at most so many trials together; at least one task."""
    kept: list[Sampled] = []
    for task in tasks:
        trials -= len(task.samples.times_s)
        if kept and trials < 0:
            break
        kept.append(task)
    return kept
