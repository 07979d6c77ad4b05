"""Which recorded trials are learnt from: as many by each rule, equal seeds alike."""

from __future__ import annotations

import numpy as np
import pytest

from fewtune.predictor.feature_names import NAMES
from fewtune.predictor.pretrained import TaskSamples
from fewtune.predictor.training_samples import Sampled
from fewtune.predictor.trial_sampling import FASTEST, RULES, SPREAD, WALK, sampled

TRIALS = 20


def tasks() -> list[Sampled]:
    random = np.random.default_rng(0)
    found = []
    for number in range(6):
        rows = random.random((TRIALS, len(NAMES))).astype("float32")
        shapes = str(("conv2d", str([[1, 56, 56, 64], [1, 1, 64, 32 + number]])))
        # The nearer to the origin, the faster.
        found.append(Sampled(shapes, TaskSamples(rows, 1e-3 * (1 + rows.sum(axis=1)))))
    return found


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_keeps_as_many_and_equal_seeds_keep_the_same(rule: str) -> None:
    kept, again = (sampled(tasks(), 60, rule, np.random.default_rng(7)) for _ in range(2))
    assert sum(len(each.samples.times_s) for each in kept) == 60
    known = {each.shapes: set(each.samples.times_s) for each in tasks()}
    for one, other in zip(kept, again, strict=True):
        np.testing.assert_array_equal(one.samples.features, other.samples.features)
        assert set(one.samples.times_s) <= known[one.shapes]
        assert len(set(one.samples.times_s)) == len(one.samples.times_s)


def test_trials_are_the_fastest_or_spread_or_walked_to() -> None:
    def kept(rule: str) -> list[np.ndarray]:
        found = sampled(tasks(), 60, rule, np.random.default_rng(0))
        return [each.samples.times_s for each in found]

    whole = [np.sort(each.samples.times_s) for each in tasks()]
    for known, fastest, spread in zip(whole, kept(FASTEST), kept(SPREAD), strict=True):
        np.testing.assert_array_equal(np.sort(fastest), known[:10])
        assert (spread.min(), spread.max()) == (known[0], known[-1])
    walked = np.mean([times.mean() for times in kept(WALK)])
    assert np.mean([times.mean() for times in kept(FASTEST)]) < walked


def test_a_task_of_few_trials_keeps_them() -> None:
    (kept,) = sampled(tasks()[:1], 1, WALK, np.random.default_rng(0))
    assert len(kept.samples.times_s) == 4
