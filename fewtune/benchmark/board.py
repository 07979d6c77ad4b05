"""The variants of one model on a board: untuned and tuned, in turns, by the board's clock."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fewtune.artifacts import Fingerprint, ImportReport
from fewtune.benchmark.variants import Measurements
from fewtune.measure.board import Board
from fewtune.measure.interleave import Samples, median_error, turned
from fewtune.model.import_model import read_lowered
from fewtune.model.one_module import largest_alone
from fewtune.runtime.executable import build_executable
from fewtune.verify.comparison import Difference
from fewtune.verify.reference import Reference

_UNTUNED = "untuned"
# Untuned is there for scale.
_UNTUNED_ROUNDS = 3
_LEAST_ROUNDS = 6
# Calls of a turn; before the first, the caches hold data of another variant.
_CALLS = 3


class BoardVariants:
    """As `fewtune.benchmark.variants.Variants`, on a board: onnxruntime does not run there.

    A board has memory for one copy of each library only.
    """

    def __init__(
        self, import_directory: Path, libraries: dict[str, Path], fingerprint: Fingerprint
    ) -> None:
        board = Board(fingerprint)
        self._device = fingerprint.device
        self._reference = Reference.read(import_directory)
        self._order = [spec.name for spec in ImportReport.read(import_directory).inputs]
        untuned = build_executable(largest_alone(read_lowered(import_directory)), board.target)
        self._compiled = {_UNTUNED: board.load(untuned)}
        self._tuned = {name: board.load(path) for name, path in libraries.items()}
        self._compiled |= self._tuned

    def measure(self, rounds: int, known_within: float) -> Measurements:
        """Measure latencies, until all medians' standard errors are small, and differences."""
        found = Difference()
        for compiled in self._tuned.values():
            found = found.worse(self._reference.check_library(compiled, self._order))
        feeds = self._reference.feeds
        for compiled in self._compiled.values():
            compiled.set_inputs([feeds[name] for name in self._order])
        samples: Samples = {name: [] for name in self._compiled}
        for done in range(rounds):
            for name in turned(list(self._compiled), done):
                if name != _UNTUNED or done < _UNTUNED_ROUNDS:
                    times_s = self._compiled[name].times_s(_CALLS)
                    samples[name].append(float(np.median(times_s[1:])))
            if done + 1 >= _LEAST_ROUNDS and all(
                median_error(samples[name]) <= known_within for name in self._tuned
            ):
                break
        remark = f"measured on {self._device} by its own clock, without onnxruntime"
        return Measurements(samples, found, 1, {name: {} for name in self._tuned}, {}, [remark])
