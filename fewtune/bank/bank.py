"""A bank that was built: the workload nearest to a task, and its schedules.

What the cost model learns lies beside its report, in a file without code. ``features.npz`` has four
arrays over all samples, workload after workload: ``rows`` (stores, 164) float32, the stores of all
candidates one after the other; ``stores`` (samples,) int32, how many rows each has; ``times_s``
(samples,) float64; ``entries`` (samples,) int32, the place of its workload in the bank.
"""

from __future__ import annotations

import hashlib
import io
import math
import zipfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import Field

from fewtune.artifacts import Artifact, Part, TaskInfo
from fewtune.errors import InputError
from fewtune.schedule.space.transfer import Donation
from fewtune.search.cost_model import CostModel
from fewtune.similarity.similarity import DesignSpace, similarity_rate
from fewtune.util.files import canonical_json, write_bytes


class BankSource(Part):
    """A tuning log that the bank was built of."""

    name: str = Field(description="its folder, below the folder of all logs")
    digest: str = Field(description="SHA-256 of its database files, the first 16 hex digits")


class BankEntry(Part):
    """One workload that was tuned, with its schedules, fastest first."""

    workload: str = Field(description="structural hash of its module, hex")
    origins: list[str] = Field(description="names of the logs that hold it")
    operator: str = Field(description="operator family, such as conv2d")
    flops: float = Field(description="floating-point operations of one call")
    shapes: list[list[int]] = Field(description="shapes of its buffers, outputs last")
    fastest_ms: float = Field(description="of its best schedule, the default one included")
    space: DesignSpace
    donations: list[Donation] = Field(description="schedules that can be moved to another task")
    latencies_ms: list[float] = Field(description="of the donations")

    @property
    def best_ms(self) -> float:
        """Latency of its best schedule that can be moved."""
        return self.latencies_ms[0]

    @property
    def origin(self) -> str:
        """The logs that hold it, as text."""
        return ", ".join(self.origins)


class BankReport(Artifact):
    """The bank's workloads and schedules; the cost model's samples are in another file."""

    file_name = "bank.json"

    sources: list[BankSource]
    entries: list[BankEntry] = Field(description="by workload")


FEATURES = "features.npz"
_WIDTH = 164


class Samples(NamedTuple):
    """Measured candidates of one workload.

    Attributes
    ----------
    features : list of ndarray, each (stores, 164)
    times_s : list of float
    """

    features: list[np.ndarray]
    times_s: list[float]


def spread(count: int, samples: int) -> list[int]:
    """Ranks to keep of ``count``: the best ones, and others spread evenly down to the worst."""
    if samples <= 1 or count <= samples:
        return list(range(min(count, samples)))
    return [rank * (count - 1) // (samples - 1) for rank in range(samples)]


def write_samples(directory: Path, samples: Sequence[Samples]) -> None:
    """Write the samples of all entries; equal samples give equal bytes (NumPy dates no member)."""
    rows = [each for entry in samples for each in entry.features]
    stream = io.BytesIO()
    np.savez_compressed(
        stream,
        rows=np.concatenate([np.empty((0, _WIDTH), "float32"), *rows]).astype("float32"),
        stores=np.array([len(each) for each in rows], dtype="int32"),
        times_s=np.array([time_s for entry in samples for time_s in entry.times_s], "float64"),
        entries=np.repeat(np.arange(len(samples)), [len(e.times_s) for e in samples]).astype(
            "int32"
        ),
    )
    write_bytes(directory / FEATURES, stream.getvalue())


def read_samples(directory: Path, entries: int) -> list[Samples]:
    """The samples of each of the bank's entries.

    Raises
    ------
    InputError
        If the file is missing or does not fit the bank.
    """
    path = directory / FEATURES
    try:
        with np.load(path, allow_pickle=False) as arrays:
            rows, stores, times_s, owners = (
                arrays[name] for name in ("rows", "stores", "times_s", "entries")
            )
        found = [Samples([], []) for _ in range(entries)]
        split = np.split(rows, np.cumsum(stores)[:-1]) if len(stores) else []
        if rows.shape != (stores.sum(), _WIDTH):
            raise ValueError(f"{rows.shape} rows for {stores.sum()} stores")
        for features, time_s, owner in zip(split, times_s.tolist(), owners.tolist(), strict=True):
            found[owner].features.append(features)
            found[owner].times_s.append(time_s)
    except (OSError, ValueError, KeyError, IndexError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{path} does not hold the samples of the bank ({error}): build the bank again"
        ) from None
    return found


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
