"""Similarity of one design space to many, by a few table look-ups for each."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from fewtune.similarity.similarity import mean_of_best, sampling_overlap
from fewtune.similarity.space_signature import DesignSpace, Sampling, SpaceTrace


class SpaceIndex:
    """Design spaces to be compared with.

    The rates are those of `fewtune.similarity.similarity.similarity_rate`, bit for bit. There are
    few distinct sampling instructions in a bank, so each overlap is computed once, and a trace is
    compared by looking its overlaps up.

    Parameters
    ----------
    spaces : sequence of DesignSpace
    """

    def __init__(self, spaces: Sequence[DesignSpace]) -> None:
        self._places: dict[Sampling, int] = {}
        self._rows: dict[Sampling, list[float]] = {}
        # Traces by form, each once: its samplings as places in the vocabulary, and its number.
        self._by_form: dict[tuple[str, ...], list[tuple[tuple[int, ...], int]]] = defaultdict(list)
        numbers: dict[SpaceTrace, int] = {}
        self._spaces: list[list[int]] = []
        for space in spaces:
            own = []
            for trace in space.traces:
                if not trace.samplings:
                    continue
                if trace not in numbers:
                    numbers[trace] = len(numbers)
                    places = tuple(
                        self._places.setdefault(sampling, len(self._places))
                        for sampling in trace.samplings
                    )
                    self._by_form[trace.form].append((places, numbers[trace]))
                own.append(numbers[trace])
            self._spaces.append(own)

    def rates(self, space: DesignSpace) -> list[float]:
        """Similarity of ``space`` to each of the spaces, 0 to 1, in their order."""
        ours = [self._overlaps(trace) for trace in space.traces if trace.samplings]
        rates = []
        for numbers in self._spaces:
            if not ours or not any(number in found for found in ours for number in numbers):
                rates.append(0.0)
                continue
            rates.append(
                mean_of_best([[found.get(number, 0.0) for number in numbers] for found in ours])
            )
        return rates

    def _overlaps(self, trace: SpaceTrace) -> dict[int, float]:
        """Overlap of a trace with every trace here of its form, by the other's number."""
        known = self._by_form.get(trace.form, ())
        rows = [self._row(sampling) for sampling in trace.samplings] if known else []
        own = tuple(self._places.get(sampling, -1) for sampling in trace.samplings)
        found = {}
        for places, number in known:
            if len(places) != len(rows):
                continue
            if places == own:
                found[number] = 1.0
                continue
            product = math.prod([row[place] for row, place in zip(rows, places, strict=True)])
            found[number] = product ** (1 / len(rows))
        return found

    def _row(self, sampling: Sampling) -> list[float]:
        """Overlap of a sampling instruction with each of the vocabulary."""
        row = self._rows.get(sampling)
        if row is None:
            row = [sampling_overlap(sampling, other) for other in self._places]
            self._rows[sampling] = row
        return row
