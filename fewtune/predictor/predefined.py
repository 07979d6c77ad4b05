"""An analytic model of a contraction's time, computed from the machine's figures without training.

Surveys of tuners call such a cost model predefined, as opposed to learnt and measured ones. In a
cycle, a core begins `_PIPES` multiply-adds of vectors, loads and stores so many vectors, and moves
so many bytes from each cache (AMD's and Intel's optimisation manuals; rounded, they are alike for
cores with AVX2 or AVX-512). A schedule's time is the longest of the times of its arithmetic, its
loads, and its traffic from each cache, plus that of idle cores. The model uses the same features as
the trees (`fewtune.predictor.features`), so it rates a point in microseconds, and a run's
measurements correct it in the same way.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fewtune.machine.host import own_cache_bytes
from fewtune.predictor.feature_names import NAMES
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import tvm

# Multiply-adds and loads that a core begins in a cycle, and stores.
_PIPES, _LOADS, _STORES = 2.0, 2.0, 1.0
# Bytes a cycle of one core from the second cache, from the shared one, from memory.
_SECOND, _SHARED, _MEMORY = 32.0, 16.0, 8.0
_FIRST_BYTES, _SECOND_BYTES = 32 * 2**10, 2**20
# A loop that is not unrolled counts and jumps: a cycle each time.
_JUMP = 1.0
_PLACES = {name: place for place, name in enumerate(NAMES)}


class Predefined:
    """The analytic model of one CPU; used in place of `Pretrained`.

    Parameters
    ----------
    traits : CpuTraits
    second_bytes : int
        Size of a core's own cache before the shared one.
    """

    def __init__(self, traits: CpuTraits, second_bytes: int) -> None:
        self._traits = traits
        self._second_bytes = second_bytes
        self._lanes = traits.lanes("float32")
        self.conditions = {"device": "an analytic model", "target": {}, "lanes": self._lanes}

    @staticmethod
    def of(target: tvm.target.Target) -> Predefined:
        """The model of a CPU target; the cache's size is this machine's."""
        return Predefined(CpuTraits.of(target), own_cache_bytes() or _SECOND_BYTES)

    def expected(self, features: np.ndarray) -> np.ndarray:
        """Logarithms of speed relative to that of arithmetic alone, (points,): 0 is the peak."""
        cycles, peak_cycles = self._cycles(np.asarray(features, dtype=float))
        return np.log(peak_cycles / cycles)

    def _cycles(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Cycles of points, and of as many multiply-adds at the peak, (points,) each."""

        def flag(name: str) -> np.ndarray:
            return features[:, _PLACES[name]] > 0

        def size(name: str) -> np.ndarray:
            return 2.0 ** features[:, _PLACES[name]]

        outputs = size("rows") * size("groups") * size("width")
        peak = size("reduction") * outputs / self._lanes / _PIPES
        # A vector that is not full, or has an odd length, takes as long as a full one.
        filled = np.minimum(1.0, size("piece")) * np.where(flag("is_odd_vector"), 0.5, 1.0)
        compute = peak * _PIPES / filled * self._cycles_of_one(features, flag, size)
        tiles = outputs / (size("tile_rows") * size("elements") * size("tile_groups"))
        tile = size("tile_weights") + size("tile_data")
        piece = size("cache_weights") + size("cache_data")
        parallel = size("threads")
        # A piece that fits into a cache is read from beyond it once, else again for each tile.
        second = np.where(piece > _FIRST_BYTES, tiles * tile, parallel * piece) / _SECOND
        shared = np.where(piece > self._second_bytes, tiles * tile, parallel * piece) / _SHARED
        weights, data, results = (size(f"{name}_bytes") for name in ("weights", "data", "results"))
        apart = np.where(flag("is_cold"), weights, 0.0) / _MEMORY
        # Separate passes: padding before everything, results in a buffer, and data in the other
        # core's cache.
        apart += np.where(flag("is_ahead"), 2 * data, 0.0) / _SHARED
        apart += np.where(features[:, _PLACES["written"]] < 0, 2 * results, 0.0) / _SHARED
        apart += np.where(flag("parted_alike"), 0.0, data / 2) / _SHARED
        rounds = np.ceil(parallel / self._traits.threads) * self._traits.threads / parallel
        whole = np.maximum(compute, np.maximum(second, shared)) * rounds + apart
        return whole / self._traits.threads, peak / self._traits.threads

    def _cycles_of_one(self, features: np.ndarray, flag: Any, size: Any) -> np.ndarray:
        """Cycles of one multiply-add of a vector, (points,), its loads and stores included."""
        accumulators, held = size("accumulators"), size("held")
        is_unrolled = flag("is_unrolled")
        room = self._traits.registers + self._traits.operands
        kept = accumulators + np.minimum(size("vectors"), size("tile_rows"))
        # Sums leave the registers if there are too many, if they are outside the inner reduction,
        # or, without unrolling, if they are not innermost.
        spilt = np.maximum(0.0, kept - room) / accumulators
        leaving = np.where(held < accumulators, 1.0 / size("inner_reduction"), 0.0)
        looped = np.where(is_unrolled | (held >= accumulators), 0.0, 1.0)
        moved = np.minimum(1.0, spilt + leaving + looped)
        latency = self._traits.in_flight / _PIPES / np.maximum(1.0, accumulators)
        speeds = [
            np.full(len(features), 1.0 / _PIPES),
            latency,
            (features[:, _PLACES["loads"]] + moved) / _LOADS,
            moved / _STORES,
        ]
        jumps = np.where(is_unrolled, 0.0, _JUMP / np.maximum(1.0, held))
        return np.maximum.reduce(speeds) + jumps
