"""Practice tasks of usual shapes are learnt from first, up to so many trials."""

import numpy as np
import pytest

from fewtune.predictor.feature_names import NAMES
from fewtune.predictor.pretrained import TaskSamples
from fewtune.predictor.training_samples import Sampled, at_most, is_usual, usual_first


def task(operator: str, data: list[int], weights: list[int], trials: int = 10) -> Sampled:
    samples = TaskSamples(np.zeros((trials, len(NAMES))), np.ones(trials))
    return Sampled(str((operator, str([data, weights]))), samples)


USUAL = task("conv2d", [1, 56, 56, 64], [1, 1, 64, 256])
ODD = task("conv2d", [1, 75, 75, 64], [1, 1, 64, 256])


@pytest.mark.parametrize(
    ("given", "usual"),
    [
        (USUAL, True),
        (ODD, False),
        (task("conv2d", [1, 56, 56, 64], [3, 3, 64, 24]), False),
        (task("batch_matmul", [36, 169, 48], [36, 48, 192]), True),
        (task("batch_matmul", [36, 676, 128], [36, 128, 16]), False),
    ],
)
def test_usual_are_common_planes_and_whole_registers_of_channels(given, usual):
    assert is_usual(given) == usual


def test_usual_tasks_go_first_and_trials_have_an_end():
    order = usual_first([ODD, USUAL, ODD, USUAL], np.random.default_rng(0))
    assert [is_usual(each) for each in order] == [True, True, False, False]
    assert len(at_most(order, 25)) == 2
    assert len(at_most(order, 1)) == 1
