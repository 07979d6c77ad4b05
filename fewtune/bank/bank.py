"""A bank that was built: the workload nearest to a task, and its schedules."""

from __future__ import annotations

import math
from pathlib import Path

from pydantic import Field

from fewtune.artifacts import Artifact, BankDonor, Fingerprint, Part, TaskInfo
from fewtune.errors import InputError
from fewtune.options import BankOptions
from fewtune.runtime.target import target_from_json
from fewtune.schedule.space.design_space import sampling
from fewtune.schedule.space.transfer import Donation
from fewtune.similarity.similarity import DesignSpace, design_space, similarity_rate
from fewtune.storage.database import digest, log_info, logs_below, read_trace, read_workloads
from fewtune.task.analysis import analyse


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


# Similarities that differ by rounding alone are ties, as in `fewtune.selection.cluster`.
_DIGITS = 9


class Bank(Artifact):
    """Donors from models that were tuned before on the same machine."""

    file_name = "bank.json"

    sources: list[BankSource]
    entries: list[BankEntry] = Field(description="by workload")

    def entry(self, workload: str) -> BankEntry | None:
        """What is known of a workload; None if the bank does not hold it."""
        return next((each for each in self.entries if each.workload == workload), None)

    def nearest(
        self, task: TaskInfo, space: DesignSpace, min_similarity: float, most: int
    ) -> list[BankDonor]:
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
        donors : list of BankDonor
            With their similarities, 0 to 1.
        """
        near = []
        for entry in self.entries:
            is_own = entry.workload == task.workload
            if is_own or entry.operator == task.operator:
                rate = 1.0 if is_own else similarity_rate(space, entry.space)
                if rate > 0 and rate >= min_similarity - 10.0**-_DIGITS:
                    apart = abs(math.log2(max(entry.flops, 1.0) / max(task.flops, 1.0)))
                    # No two have the same workload, so that donors are never compared.
                    order = not is_own, -round(rate, _DIGITS), apart, entry.workload
                    given = {"workload": entry.workload, "origin": entry.origin}
                    near.append((order, BankDonor(**given, similarity=rate)))
        return [donor for _, donor in sorted(near)[:most]]

    def donations(self, workload: str) -> list[Donation]:
        """The schedules of a workload, fastest first.

        Raises
        ------
        InputError
            If the bank holds no such workload.
        """
        entry = self.entry(workload)
        if entry is None:
            raise InputError(f"the bank holds no workload {workload}: run select_tasks again")
        return entry.donations


def build_bank(options: BankOptions, fingerprint: Fingerprint, directory: Path) -> Bank:
    """Distil all logs below a folder into a bank for one machine, target and TVM version.

    Nothing is measured. A bank is built once and serves all later models, so building it is not
    part of any model's tuning time. Looking a task up is, as part of selecting.

    Parameters
    ----------
    options : BankOptions
    fingerprint : Fingerprint
        Where the bank is to be used.
    directory : Path
        Gets ``bank.json``, and if there are logs ``log.json``. Without logs it holds nothing of the
        machine: its bytes are the same everywhere.

    Returns
    -------
    bank : Bank
        Workloads that no schedule can be moved from, such as those with a default schedule only,
        are left out.

    Raises
    ------
    InputError
        If the folder of logs is missing, or a log there is of another machine, target, number of
        threads, TVM version or way of measuring.
    JournalError
        If TVM cannot read a log.
    """
    names: dict[Path, str] = {}
    if options.logs is not None:
        root = Path(options.logs)
        if not root.is_dir():
            raise InputError(
                f"{root} is no folder: give a folder of tuning logs, or null for no bank"
            )
        # Names are relative to the folder, so that its path is not part of the bank.
        names = {
            path: root.resolve().name if path == root else path.relative_to(root).as_posix()
            for path in logs_below(root, fingerprint, "banked")
        }
    target, entries = target_from_json(fingerprint.target), []
    for workload, logged in read_workloads([*names]).items():
        donations: dict[Donation, float] = {}
        for trial in logged.trials:
            trace = read_trace(logged.module, trial, target)
            # A default schedule has made no choices: there is nothing to move.
            if len(donations) < options.best and sampling(trace):
                donations.setdefault(Donation.of(trace), trial.outcome.median_s)
        if not donations:
            continue
        cost = analyse(None, logged.module)
        entry = BankEntry(
            workload=workload,
            origins=[names[path] for path in logged.logs],
            operator=cost.operator,
            flops=cost.flops,
            fastest_ms=logged.trials[0].outcome.median_s * 1e3,
            space=design_space(logged.module, target),
            donations=list(donations),
            latencies_ms=[time_s * 1e3 for time_s in donations.values()],
        )
        entries.append(entry)
    sources = [BankSource(name=name, digest=digest(path)[:16]) for path, name in names.items()]
    bank = Bank(sources=sources, entries=entries)
    bank.write(directory)
    if names:
        log_info(fingerprint).write(directory)
    return bank
