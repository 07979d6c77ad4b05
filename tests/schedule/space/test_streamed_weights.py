"""What the prior draws: streamed weights read once, results written in order."""

import math
from functools import cache

import numpy as np
import pytest

from fewtune.model.passes.winograd import multiplied
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import te, tvm
from fewtune.schedule.space.design_space import TILE, Point
from fewtune.schedule.space.prior import Prior
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.task.weight_layout import FREE
from tests import tuned_tiny

# Axes of the products, after the places of the transforms' tile.
ROWS, FILTERS, CHANNELS = 1, 2, 3
DRAWS = 64


def products(rows: int, channels: int = 128, free: tuple[int, ...] = (1,)) -> tvm.IRModule:
    """Products after Winograd's transforms, with 2^20 bytes of weights unless given otherwise."""
    tiles = te.placeholder((16, rows, channels), name="tiles")
    weights = te.placeholder((16, channels, 128), name="weights")
    function = te.create_prim_func([tiles, weights, multiplied(tiles, weights)])
    return tvm.IRModule({"main": function.with_attr(FREE, free)})


@cache
def space(rows: int, channels: int = 128, free: tuple[int, ...] = (1,)) -> SearchSpace:
    return SearchSpace(products(rows, channels, free), tuned_tiny.target())


def drawn(space: SearchSpace) -> list[dict[int, tuple[int, ...]]]:
    """Spatial tiles of drawn points, by axis."""
    prior, random = Prior(space), np.random.default_rng(0)
    return [spatial(space, prior.draw(random)) for _ in range(DRAWS)]


def spatial(space: SearchSpace, point: Point) -> dict[int, tuple[int, ...]]:
    choices = space.programs[point.program].choices
    return {
        choice.axis: decision
        for choice, decision in zip(choices, point.decisions, strict=True)
        if choice.kind == TILE and isinstance(decision, tuple) and len(decision) == 4
    }


def covers(tiles: dict[int, tuple[int, ...]], rows: int) -> bool:
    return math.prod(tiles[ROWS][2:]) == rows


def test_most_draws_read_streamed_weights_once():
    tiles = drawn(space(16))
    assert sum(covers(each, 16) for each in tiles) > DRAWS / 2
    # Registers hold no more than they have room for.
    traits = CpuTraits.of(tuned_tiny.target())
    lanes = traits.lanes("float32")
    for each in tiles:
        held = each[ROWS][3] * max(1, math.prod(each[FILTERS][2:]) // lanes)
        assert held <= traits.registers


@pytest.mark.parametrize(
    ("rows", "channels", "free"),
    [
        (128, 128, (1,)),  # many rows use them
        (64, 32, (1,)),  # 2^18 bytes stay in the cache
        (64, 128, ()),  # activations were written a moment ago
    ],
)
def test_other_weights_are_not_drawn_as_streamed(rows, channels, free):
    assert not any(covers(each, rows) for each in drawn(space(rows, channels, free)))


LAST = 2


@cache
def depthwise(plane: int) -> SearchSpace:
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
    prior, random = Prior(depthwise(plane)), np.random.default_rng(0)
    found = []
    for _ in range(DRAWS):
        point = prior.draw(random)
        choices = depthwise(plane).programs[point.program].choices
        for choice, decision in zip(choices, point.decisions, strict=True):
            if choice.kind == TILE and choice.axis == LAST and isinstance(decision, tuple):
                found.append(decision)
    return found


@pytest.mark.parametrize(("plane", "in_one_pass"), [(112, True), (28, False)])
def test_channels_of_large_planes_are_written_in_one_pass(plane, in_one_pass):
    tiles = channel_tiles(plane)
    assert len(tiles) == DRAWS
    assert all(math.prod(tile) == 32 for tile in tiles)
    assert all(tile[0] == 1 for tile in tiles) == in_one_pass
