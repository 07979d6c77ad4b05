"""Register tiles of contractions by rule: rows that share vectors, times vectors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.schedule.blocks import Block
from fewtune.schedule.space.decision_rates import streamed_speed, tile_speed
from fewtune.schedule.tiling import divisors
from fewtune.task.analysis import FLOAT32_BYTES

# Tiles of at least this part of the best speed are drawn: the rule is a model, not a measurement.
_LEAST_SPEED = 0.6
# Weights are streamed if they have at least so many bytes, and at most so many rows use them.
_STREAMED_BYTES, _FEW_ROWS = 2**19, 64
# Results of so many bytes are in no core's cache when a kernel begins to write them.
_LARGE_BYTES = 2**20
# Speed gained by reading streamed weights only once. From the best schedules of full runs of ResNet
# 50 and SqueezeNet on an Intel Xeon.
_READ_ONCE = 1.15
# These fill half of a cache of 32 kB.
_MOST_PARTIAL_SUMS = 2**12


@dataclass(frozen=True)
class RegisterTile:
    """The loops inside the outer loops of a reduction, and their expected speed.

    Attributes
    ----------
    inner : dict of int
        Iterations by spatial axis, without axes of one iteration.
    speed : float
    held : dict of int, optional
        The iterations of ``inner`` whose results are in registers at a time, if not all are.
    """

    inner: dict[int, int]
    speed: float
    held: dict[int, int] | None = None


def register_tiles(
    block: Block, vector: int, traits: CpuTraits, streamed: frozenset[int]
) -> list[RegisterTile]:
    """Register tiles by rule, best first: rows along one or two axes, times whole vectors.

    Parameters
    ----------
    block : Block
    vector : int
        The axis along which its results are contiguous.
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
    """Tiles with all rows that use streamed weights; registers hold the sums of some of them.

    Every weight is then read once, not once for each tile of rows. All partial sums have to fit
    into the nearest cache.
    """
    if not rows:
        return
    for tile in tiles:
        inner = {vector: tile.inner[vector], **rows}
        along_rows = tile.inner.keys() - {vector} <= rows.keys()
        if along_rows and inner != tile.inner and prod(inner.values()) <= _MOST_PARTIAL_SUMS:
            yield RegisterTile(inner, _READ_ONCE * tile.speed, tile.inner)


def streamed_rows(block: Block, vector: int) -> frozenset[int]:
    """The axes of rows that share streamed weights: along them, the weights have stride 0.

    Streamed weights are large, and few rows use them: reading them from memory takes as long as the
    arithmetic. Products after Winograd's transforms of small images have such weights, and so have
    1x1 convolutions on planes of 7x7.

    Parameters
    ----------
    block : Block
    vector : int
        The axis along which its results and its weights are contiguous.

    Returns
    -------
    axes : frozenset of int
        Empty if the weights stay in a cache, or many rows use them.
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
    """Iterations by axis of tiles of at most ``most`` rows, along one or two axes."""
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
    over the whole plane. That is faster only if the caches hold the plane; otherwise it waits
    longer for memory, since its cache lines are not adjacent. MobileNet V2 has three such blocks,
    with results of 1.2 to 1.8 MB. Full tuning made 96 to 128 trials of each. The six fastest
    compute all channels in one pass, in 0.050 to 0.064 ms. Those that sharing chose took 0.076 to
    0.106 ms (an EPYC).

    Parameters
    ----------
    block : Block
    vector : int
        The axis along which its results are contiguous.
    """
    alone = all(walk is not None and walk[vector].stride == 1 for walk in block.reads)
    return alone and FLOAT32_BYTES * block.spatial_extent >= _LARGE_BYTES
