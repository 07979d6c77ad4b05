"""Inputs within what their use allows."""

from __future__ import annotations

import numpy as np

from fewtune.verify.draws import drawn_inputs, integer_limits
from fewtune.verify.session import tensor_specs
from tests import tiny_models
from tests.verify import small_models


def test_integers_lie_within_the_table_that_they_read() -> None:
    model = small_models.embedding()
    assert integer_limits(model) == {"ids": 50}
    first, second = drawn_inputs(model, tensor_specs(model)[0], 0)
    for draw in (first, second):
        assert 1 < draw.feeds["ids"].max() < 50
    assert set(np.unique(first.feeds["mask"])) == {0, 1}
    assert (second.feeds["mask"] == 1).all()


def test_floats_are_drawn_in_three_ways_and_again_the_same() -> None:
    model = tiny_models.tiny_convolutional_model()
    draws = drawn_inputs(model, tensor_specs(model)[0], 3)
    low = [float(draw.feeds["input"].min()) for draw in draws]
    assert low[0] < 0 <= low[1]
    assert low[2] > 0
    assert draws[2].feeds["input"].max() > 1
    for draw, again in zip(draws, drawn_inputs(model, tensor_specs(model)[0], 3), strict=True):
        np.testing.assert_array_equal(draw.feeds["input"], again.feeds["input"])
