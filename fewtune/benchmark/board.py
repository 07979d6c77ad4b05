"""The variants of one model on a board: untuned and tuned, in turns, by the board's clock."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fewtune.artifacts import Fingerprint, ImportReport
from fewtune.benchmark.options import BenchmarkOptions
from fewtune.measure.board import Board
from fewtune.measure.interleave import turned
from fewtune.model.import_model import read_lowered
from fewtune.runtime.executable import build_executable
from fewtune.verify.comparison import Difference
from fewtune.verify.reference import Reference

_UNTUNED = "untuned"
# Untuned is there for scale.
_UNTUNED_ROUNDS = 3
# Calls of a turn; before the first, the caches hold data of another variant.
_CALLS = 3


class BoardVariants:
    """As `fewtune.benchmark.variants.Variants`, on a board: onnxruntime does not run there.

    Parameters
    ----------
    import_directory : Path
    libraries : dict of Path
        Exported libraries by variant name.
    fingerprint : Fingerprint
    options : BenchmarkOptions
    """

    def __init__(
        self,
        import_directory: Path,
        libraries: dict[str, Path],
        fingerprint: Fingerprint,
        options: BenchmarkOptions,
    ) -> None:
        board = Board(fingerprint)
        self._reference = Reference.read(import_directory)
        self._order = [spec.name for spec in ImportReport.read(import_directory).inputs]
        untuned = build_executable(read_lowered(import_directory), board.target)
        self._compiled = {_UNTUNED: board.load(untuned)}
        self._compiled |= {name: board.load(path) for name, path in libraries.items()}
        self._set_inputs()
        # A board has memory for one copy only.
        self.options = options.model_copy(update={"copies": 1})
        self.hand_over_s: list[float] = []
        self.peers: dict[str, str] = {}
        self.remarks = [f"measured on {fingerprint.device} by its own clock, without onnxruntime"]

    def _set_inputs(self) -> None:
        feeds = self._reference.feeds
        for compiled in self._compiled.values():
            compiled.set_inputs([feeds[name] for name in self._order])

    def measured(self, rounds: int, known_within: float | None = None) -> dict[str, list[float]]:
        """Seconds of one call of every variant, in turns, one sample for each round.

        With ``known_within``, rounds end when every median's relative standard error is at most
        that.
        """
        samples: dict[str, list[float]] = {name: [] for name in self._compiled}
        for done in range(rounds):
            for name in turned(list(self._compiled), done):
                if name != _UNTUNED or done < _UNTUNED_ROUNDS:
                    times_s = self._compiled[name].times_s(_CALLS)
                    samples[name].append(float(np.median(times_s[1:])))
            if known_within is not None and _are_known(samples, known_within):
                break
        return samples

    def difference(self, name: str) -> Difference:
        """How far a variant's outputs are from onnxruntime's on the draws that the import kept."""
        compiled = self._compiled[name]
        found = self._reference.check(
            lambda feeds: compiled.outputs([feeds[each] for each in self._order])
        )
        self._set_inputs()
        return found


def _are_known(samples: dict[str, list[float]], within: float) -> bool:
    """Whether the relative standard error of every tuned variant's median is small enough."""
    for name, times_s in samples.items():
        if name == _UNTUNED:
            continue
        if len(times_s) < 2 * _UNTUNED_ROUNDS:
            return False
        low, middle, high = np.percentile(times_s, [25, 50, 75])
        if (high - low) / middle / np.sqrt(len(times_s)) > within:
            return False
    return True
