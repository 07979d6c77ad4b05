"""Build a bank of schedules out of tuning logs: distilled, merged, and the same for equal logs."""

from __future__ import annotations

from pathlib import Path

from fewtune.artifacts import Fingerprint
from fewtune.bank.bank import BankEntry, BankReport, BankSource, Samples, spread, write_samples
from fewtune.bank.options import BankOptions
from fewtune.errors import InputError
from fewtune.runtime.target import target_from_json
from fewtune.runtime.tvm import tvm
from fewtune.schedule.space.design_space import SAMPLING, Trace
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.schedule.space.transfer import Donation
from fewtune.search.cost_model import BoostedTrees
from fewtune.search.warm_start import learnable
from fewtune.similarity.similarity import design_space
from fewtune.storage.database import digest, read_trace
from fewtune.storage.log_archive import LoggedWorkload, log_info, logs_below, read_workloads
from fewtune.task.analysis import analyse
from fewtune.trial.trial import Trial


def build_bank(options: BankOptions, fingerprint: Fingerprint, directory: Path) -> BankReport:
    """Distil all logs below a folder into a bank for one machine, target and TVM version.

    Nothing is measured. A bank is built once and serves all later models, so building it is not
    part of any model's tuning time. Looking a task up is, as part of selecting.

    Parameters
    ----------
    options : BankOptions
    fingerprint : Fingerprint
        Where the bank is to be used.
    directory : Path
        Gets ``bank.json``, and if there are logs ``log.json`` and ``features.npz``. Without logs
        it holds nothing of the machine: its bytes are the same everywhere.

    Returns
    -------
    report : BankReport
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
    logs: list[Path] = []
    root = Path(options.logs) if options.logs is not None else None
    if root is not None:
        if not root.is_dir():
            raise InputError(
                f"{root} is no folder: give a folder of tuning logs, or null for no bank"
            )
        logs = logs_below(root, fingerprint, "banked")
    # Names are relative to the folder, so that its path is not part of the bank.
    names = {path: _name(path, root) for path in logs if root is not None}
    target = target_from_json(fingerprint.target)
    kept = [
        workload
        for digest_, logged in read_workloads(logs).items()
        if (workload := _distil(digest_, logged, names, options, target)) is not None
    ]
    report = BankReport(
        sources=[BankSource(name=name, digest=digest(path)[:16]) for path, name in names.items()],
        entries=[entry for entry, _ in kept],
    )
    report.write(directory)
    if logs:
        log_info(fingerprint).write(directory)
        write_samples(directory, [samples for _, samples in kept])
    return report


def _distil(
    workload: str,
    logged: LoggedWorkload,
    names: dict[Path, str],
    options: BankOptions,
    target: tvm.target.Target,
) -> tuple[BankEntry, Samples] | None:
    """What is kept of one workload; None if no schedule of it can be moved."""
    movable = [trial for trial in logged.trials if _samples_something(trial)]
    if not movable:
        return None
    # TVM takes 10 ms to read a trace: only kept traces are read, and only once.
    traces: dict[str, Trace] = {}

    def read(trial: Trial) -> Trace:
        if trial.key not in traces:
            traces[trial.key] = read_trace(logged.module, trial, target)
        return traces[trial.key]

    donations: dict[Donation, float] = {}
    for trial in movable:
        if len(donations) == options.best:
            break
        donations.setdefault(Donation.of(read(trial)), trial.outcome.median_s)
    sampled = [movable[rank] for rank in spread(len(movable), options.samples)]
    # Features are extracted here once, so that learning needs no TVM.
    measured = [(read(trial), trial.outcome.median_s) for trial in sampled]
    samples = Samples(*learnable(BoostedTrees(), SearchSpace(logged.module, target), measured))
    cost = analyse(None, logged.module)
    entry = BankEntry(
        workload=workload,
        origins=[names[path] for path in logged.logs],
        operator=cost.operator,
        flops=cost.flops,
        shapes=cost.shapes,
        fastest_ms=logged.trials[0].outcome.median_s * 1e3,
        space=design_space(logged.module, target),
        donations=list(donations),
        latencies_ms=[time_s * 1e3 for time_s in donations.values()],
    )
    return entry, samples


def _samples_something(trial: Trial) -> bool:
    """Whether a schedule made choices: a default schedule has nothing to move."""
    for instruction in trial.trace[0]:
        if instruction[0] == "EnterPostproc":
            return False
        if instruction[0] in SAMPLING:
            return True
    return False


def _name(log: Path, root: Path) -> str:
    """A log's path below the folder of all; the folder's own name if it is a log itself."""
    return root.resolve().name if log == root else log.relative_to(root).as_posix()
