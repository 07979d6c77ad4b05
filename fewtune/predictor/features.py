"""Features of a schedule's decisions, extracted without making the schedule.

MetaSchedule's features describe a program, loop by loop and store by store. To extract them, a
candidate's trace has to be applied, which takes milliseconds. But candidates of one contraction
differ only in their decisions. These give how much of each axis is in registers, in the cache and
in each thread, what each of these pieces reads and writes, and where results are written back. Such
features take microseconds, so that thousands of candidates can be rated for each one made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd, prod
from typing import Any

import numpy as np

from fewtune.machine.host import own_cache_bytes
from fewtune.predictor.feature_names import NAMES
from fewtune.schedule.space.design_space import (
    AHEAD,
    CATEGORICAL,
    INLINED,
    LOCATION,
    OUTSIDE,
    REDUCTION_LEVELS,
    SPATIAL_LEVELS,
    TILE,
    Point,
    Program,
)
from fewtune.schedule.space.prior import LONGEST_WINDOW, RuledBlock
from fewtune.task.access import Walk, bytes_of, touched_elements
from fewtune.task.analysis import FLOAT32_BYTES, PRODUCTS, TILES
from fewtune.task.extract import Task
from fewtune.task.weight_layout import free_places

# Levels of a spatial axis: thread, cache, rows (outside the inner reduction), vector; of a reduced
# one: outer, inner.
_THREAD, _CACHE, _ROWS, _VECTOR = range(SPATIAL_LEVELS)
_OUTER, _INNER = range(REDUCTION_LEVELS)
_REGISTER = (_ROWS, _VECTOR)
# Bytes are multiplied in words of four, which are as wide as a float32 and as many to a vector.
_KNOWN = ("float32", "int32")
# The values for no location to choose, and for a location that is still open.
_NOWHERE, _ANYWHERE = -3, 7


class DecisionFeatures:
    """Features of a contraction's points.

    Parameters
    ----------
    programs : sequence of Program
        The task's design spaces.
    contraction : RuledBlock
    is_cold : bool
        Whether weights are not in the caches when the task begins.
    """

    def __init__(self, programs: Sequence[Program], contraction: RuledBlock, is_cold: bool) -> None:
        block, vector = contraction.block, contraction.vector
        self._programs = programs
        self._name = contraction.name
        self._vector = vector
        self._lanes = contraction.lanes
        self._extents = block.extents
        self._reduced = [axis for axis, kind in enumerate(block.kinds) if kind != "S"]
        self._windows = [a for a in self._reduced if block.extents[a] <= LONGEST_WINDOW]
        reads = block.known_reads
        along = [walk for walk in reads if walk[vector].stride == 1]
        across = [walk for walk in reads if walk[vector].stride == 0]
        self.data_type = block.data_type
        self._weights, self._data = [*reads, *along][-1], [*across, *reads][0]
        self._results: list[Walk] = block.writes[0] or []
        self._parted = block.long_axes
        others = [axis for axis in self._parted if axis != vector]
        self._rows = [axis for axis in others if self._weights[axis].stride == 0]
        self._groups = [axis for axis in others if self._weights[axis].stride != 0]
        # The kernels around split the tiles of such products, elsewhere the outermost axis.
        outermost = self._parted[0] if self._parted else None
        self._parted_before = TILES if contraction.name == PRODUCTS else outermost
        self._constants = self._of_task(contraction.streamed, is_cold)

    @staticmethod
    def if_usable(
        programs: Sequence[Program], contraction: RuledBlock | None, *, is_cold: bool
    ) -> DecisionFeatures | None:
        """The features of a task; None where its decisions give none."""
        if contraction is None or not contraction.block.reads:
            return None
        block = contraction.block
        # Reads without plain arithmetic have no features.
        if None in (*block.reads, block.writes[0]) or block.data_type not in _KNOWN:
            return None
        for choice in (choice for program in programs for choice in program.choices):
            if choice.kind == TILE and choice.block == contraction.name:
                levels = SPATIAL_LEVELS if block.kinds[choice.axis] == "S" else REDUCTION_LEVELS
                if not isinstance(choice.default, tuple) or len(choice.default) != levels:
                    return None
        return DecisionFeatures(programs, contraction, is_cold)

    def of(self, points: Sequence[Point]) -> np.ndarray:
        """Features of points, (points, `NAMES`), float32."""
        found = np.empty((len(points), len(NAMES)), dtype="float32")
        found[:, : len(self._constants)] = self._constants
        for program in self._programs:
            places = [i for i, point in enumerate(points) if point.program == program.number]
            if places:
                decided = self._of_decisions(program, [points[i] for i in places])
                found[places, len(self._constants) :] = decided
        return found

    def _of_task(self, streamed: frozenset[int], is_cold: bool) -> list[float]:
        extents = [np.array([extent]) for extent in self._extents]
        sizes = [
            float(_log2(FLOAT32_BYTES * touched_elements(walk, extents))[0])
            for walk in (self._weights, self._data, self._results)
        ]
        counts = [
            prod(self._extents[axis] for axis in axes)
            for axes in (self._reduced, self._windows, self._rows, self._groups, [self._vector])
        ]
        flags = [float(is_cold), float(bool(streamed)), float(bool(self._rows))]
        return [*(float(np.log2(count)) for count in counts), *sizes, *flags]

    def _of_decisions(self, program: Program, points: list[Point]) -> np.ndarray:
        tiles, unroll, location = self._decided(program, points)
        ones = np.ones(len(points))

        def count(axes: Sequence[int], *levels: int) -> np.ndarray:
            parts = [tiles[axis][:, level] for axis in axes if axis in tiles for level in levels]
            return np.prod(parts, axis=0) if parts else ones

        vector, rows, groups, lanes = [self._vector], self._rows, self._groups, self._lanes
        elements = count(vector, *_REGISTER)
        piece = np.array([gcd(int(each), lanes) for each in elements])
        vectors, tile_rows = elements / piece, count(rows, *_REGISTER)
        tile_groups = count(groups, *_REGISTER)
        accumulators = tile_rows * vectors * tile_groups
        held = count([*rows, *groups], _VECTOR) * count(vector, _VECTOR) / piece
        inner = count(self._reduced, _INNER)
        body = accumulators * inner
        several = [(count([axis], *_REGISTER) > 1).astype(float) for axis in rows]
        threads = count([*vector, *rows, *groups], _THREAD)
        columns = [
            _log2(elements),
            _log2(count(vector, _VECTOR)),
            # LLVM takes vectors apart whose length is no power of two.
            (np.log2(count(vector, _VECTOR)) % 1 > 0).astype(float),
            _log2(piece / lanes),
            _log2(vectors),
            _log2(tile_rows),
            _log2(count(rows, _VECTOR)),
            _log2(accumulators),
            _log2(held),
            (accumulators < 8).astype(float),
            (accumulators > 24).astype(float),
            (vectors + tile_rows) / (vectors * tile_rows),
            np.sum(several, axis=0) if several else 0 * ones,
            _log2(count(rows[-1:], *_REGISTER)),
            _log2(tile_groups),
            _log2(inner),
            _log2(count(self._windows, _INNER)),
            _log2(body),
            _log2(1 + unroll),
            (body <= unroll).astype(float),
            *(_log2(count(a, n)) for a in (vector, rows, groups) for n in (_THREAD, _CACHE)),
            _log2(threads),
            threads % 2,
            *self._parting(tiles, ones),
            program.written * ones,
            (location == INLINED).astype(float),
            (location == AHEAD).astype(float),
            ((location >= 0) & (location <= OUTSIDE)).astype(float),
            location,
            *self._touched(count),
        ]
        return np.stack(columns, axis=1)

    def _touched(self, count: Callable[..., np.ndarray]) -> list[np.ndarray]:
        """What the pieces of the loops read and write, in logarithms of bytes."""
        found, axes = [], range(len(self._extents))
        cache, operands = (_CACHE, *_REGISTER), (self._weights, self._data)
        for spatial, reduced, tensors in (
            (_REGISTER, (_INNER,), operands),
            (_REGISTER, (_OUTER, _INNER), operands),
            (cache, (_OUTER, _INNER), (*operands, self._results)),
        ):
            levels = [reduced if axis in self._reduced else spatial for axis in axes]
            iterations = [count([axis], *levels[axis]) for axis in axes]
            found += [_log2(FLOAT32_BYTES * touched_elements(w, iterations)) for w in tensors]
        return found

    def _parting(self, tiles: dict[int, np.ndarray], ones: np.ndarray) -> list[np.ndarray]:
        """Whether threads split the axis that the kernel before split, and whether the vectors'."""
        open_, alike, vectors = ones > 0, 0 * ones, 0 * ones
        for axis in self._parted:
            # The thread loops are fused in this order: the first with iterations is split.
            found = open_ & (tiles[axis][:, _THREAD] > 1) if axis in tiles else 0 * ones > 0
            if axis == self._parted_before:
                alike = found.astype(float)
            if axis == self._vector:
                vectors = found.astype(float)
            open_ = open_ & ~found
        return [alike, vectors]

    def _decided(
        self, program: Program, points: list[Point]
    ) -> tuple[dict[int, np.ndarray], np.ndarray, np.ndarray]:
        """Tiles by axis, each (points, levels); depths to unroll to and locations, (points,)."""
        tiles, unroll = {}, np.zeros(len(points))
        location = np.full(len(points), float(_NOWHERE))
        for place, choice in enumerate(program.choices):
            decisions: list[Any] = [point.decisions[place] for point in points]
            if choice.kind == TILE and choice.block == self._name:
                tiles[choice.axis] = np.array(decisions, dtype=float)
            elif choice.kind == CATEGORICAL and choice.values:
                unroll = np.array([choice.values[int(each)] for each in decisions], dtype=float)
            elif choice.kind == LOCATION:
                # An open location is drawn when the schedule is made: it can be anywhere.
                known = [_ANYWHERE if each is None else int(each) for each in decisions]
                location = np.array(known, dtype=float)
        return tiles, unroll, location


def _log2(values: np.ndarray) -> np.ndarray:
    return np.log2(np.maximum(values, 2.0**-10))


# Activations need room as well.
_CACHE_FOR_WEIGHTS = 0.5


# In a model whose weights outgrow the cache, every kernel reads its weights from memory: up to a
# third of its time, which differs by schedule. The predictor asks. The cache that counts is a
# core's own: others evict weights from a shared one.
def weights_bytes(tasks: Sequence[Task]) -> int:
    """Bytes of all weights of a model; a kernel that is called twice counts twice."""
    return sum(
        bytes_of(task.mod["main"].params[place]) * task.info.weight
        for task in tasks
        for place in free_places(task.mod["main"])
    )


def weights_outgrow_cache(tasks: Sequence[Task], cache_bytes: int | None = None) -> bool:
    """Whether a core reads a model's weights from memory in every inference.

    Parameters
    ----------
    tasks : sequence of Task
        All tasks of the model.
    cache_bytes : int, optional
        `own_cache_bytes` unless given; where that is unknown, the answer is no.
    """
    cache_bytes = own_cache_bytes() if cache_bytes is None else cache_bytes
    return cache_bytes is not None and weights_bytes(tasks) > _CACHE_FOR_WEIGHTS * cache_bytes
