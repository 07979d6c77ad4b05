"""Which task takes schedules of which donors, from a selection, a tuning log and a bank."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fewtune.artifacts import Selection, TuneReport
from fewtune.bank.bank import Bank
from fewtune.errors import InputError
from fewtune.options import ShareOptions
from fewtune.runtime.tvm import ms
from fewtune.schedule.space.design_space import sampling
from fewtune.schedule.space.transfer import Donation
from fewtune.sharing.job import BankedSchedule, ShareJob
from fewtune.sharing.rules import SharingRules
from fewtune.storage.database import best_trials
from fewtune.task.extract import Task
from fewtune.trial.trial import Trial
from fewtune.tuning.task_state import PriorResult

# Of a task that was to be tuned: nothing was found, and nothing speaks against looking again.
_WITHOUT_SCHEDULE = ("not_reached", "no_valid_schedule")


def plan(
    by_name: dict[str, Task],
    selection: Selection,
    tuned: TuneReport,
    database: ms.database.Database,
    options: ShareOptions,
    rules: SharingRules,
    *,
    is_checked: bool,
    bank: Bank | None = None,
    bank_directory: Path | None = None,
    model_directory: Path | None = None,
) -> ShareJob:
    """Say what sharing has to do.

    Parameters
    ----------
    by_name : dict of Task
        The model's tasks, by their names.
    selection : Selection
    tuned : TuneReport
    database : Database
        What tuning measured.
    options : ShareOptions
    rules : SharingRules
    is_checked : bool
        Whether the candidates of the log were checked.
    bank : Bank, optional
        Needed where the selection takes schedules from it.
    bank_directory, model_directory : Path, optional
        As of `fewtune.sharing.share.share_schedules`.

    Returns
    -------
    job : ShareJob
        Without takers where there is nothing to do.

    Raises
    ------
    InputError
        If schedules of a bank are selected and none is given.
    """
    takers = _takers(selection, tuned)
    if not takers:
        return ShareJob({}, {}, {}, {}, options, rules=rules)
    records = {name: _parted(database, by_name[name]) for name in selection.representatives}
    searched = {name: _donations(each.searched, options) for name, each in records.items()}
    return ShareJob(
        takers=takers,
        donations={**searched, **_banked(selection, bank, options)},
        known=_known(selection, by_name, bank, options),
        tuned=_earlier(tuned, records, True if is_checked else None),
        options=options,
        bank=bank_directory,
        model=model_directory,
        cold_weights=tuned.cold_weights,
        rules=rules,
    )


def _takers(selection: Selection, tuned: TuneReport) -> dict[str, list[str]]:
    """Every task that takes schedules, with its donors.

    A representative that its session found nothing for, having had no time for it or no luck, is
    served like a task that stands alone. In full tuning nothing is shared.
    """
    without = [line.task for line in tuned.tasks if line.status in _WITHOUT_SCHEDULE]
    first = {
        **{name: [] for name in without if selection.method != "all"},
        **{name: [donor] for name, donor in selection.dependents.items()},
        **{name: [] for name in selection.alone},
        **{name: [donor.name for donor in donors] for name, donors in selection.banked.items()},
    }
    return {name: first[name] for name in sorted(first)}


class _Records(NamedTuple):
    """A task's records, fastest first: those that a search found, and its default schedule's."""

    searched: list[ms.database.TuningRecord]
    default: list[ms.database.TuningRecord]


def _parted(database: ms.database.Database, task: Task) -> _Records:
    """A task's records in the log; a default schedule makes no choices."""
    parted = _Records([], [])
    for record in best_trials(database, task.mod, 1_000_000):
        (parted.searched if sampling(record.trace) else parted.default).append(record)
    return parted


def _earlier(
    tuned: TuneReport, records: dict[str, _Records], is_checked: bool | None
) -> dict[str, PriorResult]:
    """What is known of each representative that a schedule was found for, by its name.

    Where no candidate was checked (None), as in logs of earlier versions, the session does so.
    """
    found = {}
    for line in tuned.tasks:
        known = records.get(line.task)
        if known is not None and known.searched:
            default = next(
                (Trial.from_record(each, is_checked=is_checked) for each in known.default), None
            )
            finished = "crashed while it was tuned" if line.status == "crashed" else None
            trials = [Trial.from_record(each, is_checked=is_checked) for each in known.searched]
            found[line.task] = PriorResult(trials, default, finished)
    return found


def _banked(
    selection: Selection, bank: Bank | None, options: ShareOptions
) -> dict[str, list[Donation]]:
    """What the donors in the bank have to give, by their names."""
    donors = {d.name: d for donors in selection.banked.values() for d in donors}
    if not donors:
        return {}
    if bank is None:
        raise InputError("the selection takes schedules from a bank, and none is given")
    found = {}
    for name, donor in sorted(donors.items()):
        given = bank.donations(donor.workload)
        found[name] = given[: options.count(len(given))]
    return found


def _known(
    selection: Selection, by_name: dict[str, Task], bank: Bank | None, options: ShareOptions
) -> dict[str, BankedSchedule]:
    """Tasks that the bank holds themselves: the donor's name, and the latency it had, in ms."""
    if bank is None or options.measure_known:
        return {}
    found = {}
    for name, (first, *_) in sorted(selection.banked.items()):
        entry = bank.entries[first.workload]
        # Where the default schedule was the faster one, there is nothing to take.
        if first.workload == by_name[name].info.workload and entry.best_ms <= entry.fastest_ms:
            found[name] = BankedSchedule(first.name, entry.best_ms)
    return found


def _donations(records: list[ms.database.TuningRecord], options: ShareOptions) -> list[Donation]:
    """The best of what a search found, as it is given."""
    return [Donation.of(record.trace) for record in records[: options.count(len(records))]]
