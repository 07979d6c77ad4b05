"""Depthwise convolutions of large planes: results are written in their order in memory."""

import math
from functools import cache

import numpy as np
import pytest

from fewtune.runtime.tvm import te, tvm
from fewtune.schedule.space.design_space import TILE
from fewtune.schedule.space.prior import Prior
from fewtune.schedule.space.search_space import SearchSpace
from tests import tuned_tiny

CHANNELS = 2
DRAWS = 48


@cache
def space(plane: int) -> SearchSpace:
    """A depthwise convolution of three rows, over 32 channels of a square plane."""
    data = te.placeholder((plane + 2, plane, 32), name="data")
    weights = te.placeholder((3, 32), name="weights")
    row = te.reduce_axis((0, 3), name="row")
    result = te.compute(
        (plane, plane, 32),
        lambda i, j, c: te.sum(data[i + row, j, c] * weights[row, c], axis=row),
        name="result",
    )
    function = te.create_prim_func([data, weights, result])
    return SearchSpace(tvm.IRModule({"main": function}), tuned_tiny.target())


def channel_tiles(plane: int) -> list[tuple[int, ...]]:
    """Tiles of the channels in drawn points."""
    prior, random = Prior(space(plane)), np.random.default_rng(0)
    found = []
    for _ in range(DRAWS):
        point = prior.draw(random)
        choices = space(plane).programs[point.program].choices
        for choice, decision in zip(choices, point.decisions, strict=True):
            if choice.kind == TILE and choice.axis == CHANNELS and isinstance(decision, tuple):
                found.append(decision)
    return found


@pytest.mark.parametrize(("plane", "in_one_pass"), [(112, True), (28, False)])
def test_channels_of_large_planes_are_written_in_one_pass(plane, in_one_pass):
    tiles = channel_tiles(plane)
    assert len(tiles) == DRAWS
    assert all(math.prod(tile) == 32 for tile in tiles)
    assert all(tile[0] == 1 for tile in tiles) == in_one_pass
