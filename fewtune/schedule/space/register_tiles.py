"""The register tiles that fit a contraction by rule: rows that share a vector, and vectors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.schedule.blocks import Block
from fewtune.schedule.space.decision_rates import streamed_speed, tile_speed
from fewtune.schedule.tiling import divisors
from fewtune.task.analysis import FLOAT32_BYTES

# Tiles this much below the best are still drawn: the rule is a model, not a measurement.
_LEAST_SPEED = 0.6
# Weights of at least so many bytes, used by at most so many rows, bound the time of a block.
_STREAMED_BYTES, _FEW_ROWS = 2**19, 64
# Results of so many bytes are in no core's cache when a kernel begins to write them.
_LARGE_BYTES = 2**20
# Speed gained by reading such weights just once, from the best schedules of full runs of ResNet 50
# and SqueezeNet on an Intel Xeon. Partial sums that fit into half of a cache of 32 kB.
_READ_ONCE, _MOST_PARTIAL_SUMS = 1.15, 2**12


@dataclass(frozen=True)
class RegisterTile:
    """The loops inside the outer loops of a reduction, and their expected speed.

    Attributes
    ----------
    inner : dict of int
        Iterations by spatial axis; an axis of one is left out.
    speed : float
    held : dict of int, optional
        The iterations of ``inner`` that registers hold, if they do not hold all. The others are
        between these and the outer reduction.
    """

    inner: dict[int, int]
    speed: float
    held: dict[int, int] | None = None


def register_tiles(
    block: Block, vector: int, traits: CpuTraits, streamed: frozenset[int]
) -> list[RegisterTile]:
    """Register tiles by rule, best first: rows along one axis, or two, times whole vectors.

    Parameters
    ----------
    block : Block
    vector : int
        The axis that its results are contiguous along.
    traits : CpuTraits
    streamed : frozenset of int
        `streamed_rows` of the block.
    """
    lanes = traits.lanes(block.data_type)
    if any(walk is not None and walk[vector].stride not in (0, 1) for walk in block.reads):
        return []
    others = [
        axis
        for axis, kind in enumerate(block.kinds)
        if kind == "S" and axis != vector and block.extents[axis] > 1
    ]
    # Rows share the vectors that they multiply: one read has stride 0 along their axis.
    rows_of = [
        axis
        for axis in others
        if any(walk is not None and walk[axis].stride == 0 for walk in block.reads)
    ]
    reduction = prod(
        extent for extent, kind in zip(block.extents, block.kinds, strict=True) if kind != "S"
    )
    tiles: dict[tuple[tuple[int, int], ...], RegisterTile] = {}
    for elements in divisors(block.extents[vector]):
        if elements > 8 * lanes:
            break
        for rows in _row_tiles(rows_of, block.extents, traits.registers):
            count = prod(rows.values())
            speed = tile_speed(count, elements, lanes, reduction, traits)
            if not rows_of and speed > 0:
                speed = streamed_speed(elements, lanes)
            if speed > 0:
                inner = {vector: elements, **rows}
                tiles[tuple(sorted(inner.items()))] = RegisterTile(inner, speed)
    rows = {axis: block.extents[axis] for axis in streamed}
    found = [*tiles.values(), *_covering(tiles.values(), rows, vector)]
    best = max((tile.speed for tile in found), default=0.0)
    good = [tile for tile in found if tile.speed >= _LEAST_SPEED * best]
    return sorted(good, key=lambda tile: (-tile.speed, sorted((tile.held or tile.inner).items())))


def _covering(
    tiles: Iterable[RegisterTile], rows: dict[int, int], vector: int
) -> Iterator[RegisterTile]:
    """Tiles with all rows that use streamed weights; registers hold some of them at a time.

    Every weight is then read once, not once for each tile of rows. The partial sums that registers
    do not hold have to fit into the nearest cache.
    """
    if not rows:
        return
    for tile in tiles:
        inner = {vector: tile.inner[vector], **rows}
        along_rows = tile.inner.keys() - {vector} <= rows.keys()
        if along_rows and inner != tile.inner and prod(inner.values()) <= _MOST_PARTIAL_SUMS:
            yield RegisterTile(inner, _READ_ONCE * tile.speed, tile.inner)


def streamed_rows(block: Block, vector: int) -> frozenset[int]:
    """Axes of the few rows that share large weights, along which the weights have stride 0.

    Products after Winograd's transforms of small images have such weights, and 1x1 convolutions on
    planes of 7x7: reading them from memory takes as long as the arithmetic. There are no such axes
    if the weights are small enough to stay in the cache, or many rows use them.

    Parameters
    ----------
    block : Block
    vector : int
        The axis that its results are contiguous along, and its weights.
    """
    for walk, size in zip(block.reads, block.weights_bytes, strict=True):
        if walk is None or walk[vector].stride != 1 or size < _STREAMED_BYTES:
            continue
        rows = frozenset(
            axis
            for axis, kind in enumerate(block.kinds)
            if kind == "S" and walk[axis].stride == 0 and block.extents[axis] > 1
        )
        if prod(block.extents[axis] for axis in rows) <= _FEW_ROWS:
            return rows
    return frozenset()


def _row_tiles(axes: list[int], extents: list[int], most: int) -> list[dict[int, int]]:
    found: list[dict[int, int]] = [{}]
    for place, axis in enumerate(axes):
        for rows in divisors(extents[axis]):
            if rows == 1 or rows > most:
                continue
            found.append({axis: rows})
            for other in axes[place + 1 :]:
                found.extend(
                    {axis: rows, other: more}
                    for more in divisors(extents[other])
                    if more > 1 and rows * more <= most
                )
    return found


def is_written_in_one_pass(block: Block, vector: int) -> bool:
    """Whether a block of large results should write them in their order in memory.

    A depthwise convolution computes each channel by itself. It can compute some channels at a time
    over the whole plane, which is faster if the caches hold the plane. If they do not, it waits for
    memory, and longer for cache lines that do not follow each other. MobileNet V2 has three such
    blocks, with results of 1.2 to 1.8 MB. Full tuning made 96 to 128 trials of each. The six
    fastest compute all channels in one pass, in 0.050 to 0.064 ms. Those that sharing chose took
    0.076 to 0.106 ms (an EPYC).

    Parameters
    ----------
    block : Block
    vector : int
        The axis that its results are contiguous along.
    """
    alone = all(walk is not None and walk[vector].stride == 1 for walk in block.reads)
    return alone and FLOAT32_BYTES * block.spatial_extent >= _LARGE_BYTES
