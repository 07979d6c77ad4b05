"""A bank that was built: the workload nearest to a task, and its schedules."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from fewtune.artifacts import TaskInfo
from fewtune.bank.report import BankEntry, BankReport
from fewtune.bank.samples import FEATURES, read_samples
from fewtune.errors import InputError
from fewtune.schedule.space.transfer import Donation
from fewtune.search.cost_model import CostModel
from fewtune.similarity.similarity import (
    DesignSpace,
    Sampling,
    SpaceTrace,
    mean_of_best,
    sampling_overlap,
)
from fewtune.util.files import canonical_json

# Similarities that differ by rounding alone are ties, as in `fewtune.selection.cluster`.
_DIGITS = 9


class Bank:
    """Donors from models that were tuned before on the same machine.

    Parameters
    ----------
    report : BankReport
    directory : Path, optional
        Folder of the cost model's samples; without it `teach` does nothing.
    """

    def __init__(self, report: BankReport, directory: Path | None = None) -> None:
        self.report = report
        self.entries = {entry.workload: entry for entry in report.entries}
        self._directory = directory

    @classmethod
    def read(cls, directory: Path) -> Bank:
        """Read what `fewtune.bank.build.build_bank` wrote.

        Raises
        ------
        InputError
            If it is missing, or is not what this version writes.
        """
        return cls(BankReport.read(directory), directory)

    @cached_property
    def digest(self) -> str:
        """Sixteen hex digits that differ when anything in the bank differs."""
        content = canonical_json(self.report.model_dump(mode="json")).encode()
        if self._directory is not None and (self._directory / FEATURES).is_file():
            content += (self._directory / FEATURES).read_bytes()
        return hashlib.sha256(content).hexdigest()[:16]

    def nearest(
        self, task: TaskInfo, space: DesignSpace, min_similarity: float, most: int
    ) -> list[tuple[BankEntry, float]]:
        """The workloads that a task can take schedules from, the most similar first.

        Only those of the task's operator family are compared, as in
        `fewtune.similarity.similarity.similarity_matrix`; the task's own workload always comes
        first, with similarity 1. Among equally similar ones the nearest in FLOPs comes first, then
        the one whose workload hash sorts first.

        Parameters
        ----------
        task : TaskInfo
            Its workload, operator family and FLOPs are used.
        space : DesignSpace
            The task's.
        min_similarity : float
            Less similar workloads are left out; those of similarity 0 always are.
        most : int
            Donors to return at most.

        Returns
        -------
        donors : list of (BankEntry, float)
            With their similarities, 0 to 1.
        """
        entries, index = self._families.get(task.operator, ([], SpaceIndex([])))
        rates = dict(zip((entry.workload for entry in entries), index.rates(space), strict=True))
        own = self.entries.get(task.workload)
        if own is not None:
            rates[own.workload] = 1.0
        near = [
            (self.entries[workload], rate)
            for workload, rate in rates.items()
            if rate > 0 and rate >= min_similarity - 10.0**-_DIGITS
        ]

        def order(donor: tuple[BankEntry, float]) -> tuple[bool, float, float, str]:
            entry, rate = donor
            apart = abs(math.log2(max(entry.flops, 1.0) / max(task.flops, 1.0)))
            return entry.workload != task.workload, -round(rate, _DIGITS), apart, entry.workload

        return sorted(near, key=order)[:most]

    def donations(self, workload: str) -> list[Donation]:
        """The schedules of a workload, fastest first.

        Raises
        ------
        InputError
            If the bank holds no such workload.
        """
        if workload not in self.entries:
            raise InputError(f"the bank holds no workload {workload}: run select_tasks again")
        return self.entries[workload].donations

    def teach(self, cost_model: CostModel) -> None:
        """Let a cost model learn from every sample of the bank, in one training.

        Each workload of the bank is a group of its own, apart from a run's trials of the same
        workload: labels are relative to a group's best time, and times of two sessions differ.

        Raises
        ------
        InputError
            If the samples are missing or do not fit the bank.
        """
        if not self.entries or self._directory is None:
            return
        samples = read_samples(self._directory, len(self.report.entries))
        cost_model.learn_groups(
            {
                ("bank", entry.workload): (each.features, each.times_s)
                for entry, each in zip(self.report.entries, samples, strict=True)
            }
        )

    @cached_property
    def _families(self) -> dict[str, tuple[list[BankEntry], SpaceIndex]]:
        entries: dict[str, list[BankEntry]] = defaultdict(list)
        for entry in self.report.entries:
            entries[entry.operator].append(entry)
        return {
            family: (members, SpaceIndex([entry.space for entry in members]))
            for family, members in entries.items()
        }


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
