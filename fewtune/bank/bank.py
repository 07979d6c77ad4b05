"""A bank that was built: the workload nearest to a task, and its schedules."""

from __future__ import annotations

import hashlib
import math
from functools import cached_property
from pathlib import Path

from fewtune.artifacts import TaskInfo
from fewtune.bank.report import BankEntry, BankReport
from fewtune.bank.samples import FEATURES, read_samples
from fewtune.errors import InputError
from fewtune.schedule.space.transfer import Donation
from fewtune.search.cost_model import CostModel
from fewtune.similarity.similarity import DesignSpace, similarity_rate
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
        rates = {
            entry.workload: similarity_rate(space, entry.space)
            for entry in self.report.entries
            if entry.operator == task.operator
        }
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
