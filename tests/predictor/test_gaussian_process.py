"""The replay of full tuning's trials that says what a run's own trials are worth."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.parts import correction
from fewtune.errors import InputError
from fewtune.predictor.feature_names import NAMES
from fewtune.predictor.pretrained import Pretrained, TaskSamples
from pipelines.commands.predictor import Learnable
from tests.made.predictors import features, learnt, some_points


def tasks(pretrained: Pretrained, count: int = 6) -> list[Learnable]:
    """Tasks of 40 trials, of which those with deep bodies are slower than was learnt elsewhere."""
    found = []
    for task in range(count):
        rows = features(some_points(40, seed=10 + task))
        bodies = rows[:, NAMES.index("body")]
        speeds = pretrained.expected(rows) - 0.8 * (bodies > np.median(bodies))
        order = np.argsort(-speeds, kind="stable")
        samples = TaskSamples(rows[order], (1 + task) * 1e-3 * np.exp(-speeds[order]))
        found.append(Learnable(("conv2d", str(task)), 1, samples))
    return found


def test_what_was_measured_here_finds_fast_ones_sooner() -> None:
    pretrained = learnt(some_points(400))
    found = correction.regret(pretrained, tasks(pretrained), seeds=3, model="made")
    assert found.corrected.shape == found.alone.shape == (3,)
    # Every further trial can only find a faster one.
    assert (np.diff(found.corrected) <= 0).all()
    assert (np.diff(found.alone) <= 0).all()
    assert (found.corrected >= 1).all()
    assert found.corrected[0] < found.alone[0]
    again = correction.regret(pretrained, tasks(pretrained), seeds=3, model="made")
    assert np.array_equal(found.corrected, again.corrected)


def test_a_model_of_two_tasks_has_none_to_choose_for() -> None:
    pretrained = learnt(some_points(100))
    with pytest.raises(InputError, match="made has no task to choose trials of"):
        correction.regret(pretrained, tasks(pretrained, 2), seeds=1, model="made")
