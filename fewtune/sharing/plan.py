"""Which task takes schedules of which donors, from a selection, a tuning log and a bank."""

from __future__ import annotations

from typing import NamedTuple

from fewtune.artifacts import Selection, TuneReport
from fewtune.bank.bank import Bank
from fewtune.errors import InputError
from fewtune.options import ShareOptions
from fewtune.runtime.tvm import ms
from fewtune.schedule.space.design_space import sampling
from fewtune.schedule.space.transfer import Donation
from fewtune.sharing.job import BankedSchedule, ShareJob
from fewtune.storage.database import best_trials
from fewtune.task.extract import Task
from fewtune.trial.trial import Trial
from fewtune.tuning.task_state import PriorResult

# A tuned task of one of these states has no schedule; candidates of donors may help.
_WITHOUT_SCHEDULE = ("not_reached", "no_valid_schedule", "slower_than_default")


def plan(
    by_name: dict[str, Task],
    selection: Selection,
    tuned: TuneReport,
    database: ms.database.Database,
    options: ShareOptions,
    bank: Bank | None = None,
) -> ShareJob:
    """Plan what sharing does.

    Parameters
    ----------
    by_name : dict of Task
        The model's tasks, by their names.
    selection : Selection
    tuned : TuneReport
    database : Database
        The tuning log.
    options : ShareOptions
    bank : Bank, optional
        Needed if the selection takes schedules from it.

    Returns
    -------
    job : ShareJob
        Without takers if there is nothing to do.

    Raises
    ------
    InputError
        If schedules of a bank are selected and none is given.
    """
    takers = takers_of(selection, tuned)
    if not takers:
        return ShareJob({}, {}, {}, {}, options)
    records = {name: _records(database, by_name[name]) for name in selection.representatives}
    searched = {name: _donations(each.searched, options) for name, each in records.items()}
    return ShareJob(
        takers=takers,
        donations={**searched, **_banked(selection, bank, options)},
        known=_known(selection, by_name, bank, options),
        tuned=_earlier(tuned, records),
        options=options,
        cold_weights=tuned.cold_weights,
        small=selection.small,
        twins=sorted(selection.twins),
    )


def takers_of(selection: Selection, tuned: TuneReport) -> dict[str, list[str]]:
    """Every task that takes schedules, with its donors.

    A representative without a schedule is treated like a task without a donor. In full tuning
    nothing is shared.
    """
    without = [line.task for line in tuned.tasks if line.status in _WITHOUT_SCHEDULE]
    first = {
        **{name: [] for name in without if selection.method != "all"},
        **{name: [donor] for name, donor in selection.dependents.items()},
        **{name: [] for name in [*selection.alone, *selection.small]},
        **{name: [donor.name for donor in donors] for name, donors in selection.banked.items()},
        **{name: [twin] for name, twin in selection.twins.items()},
    }
    return {name: first[name] for name in sorted(first)}


class _Records(NamedTuple):
    """A task's records, fastest first: of its search, and of its default schedule."""

    searched: list[ms.database.TuningRecord]
    default: list[ms.database.TuningRecord]


def _records(database: ms.database.Database, task: Task) -> _Records:
    """A task's records in the log; the record of a default schedule has no sampling decisions."""
    split = _Records([], [])
    for record in best_trials(database, task.mod, 1_000_000):
        (split.searched if sampling(record.trace) else split.default).append(record)
    return split


def _earlier(tuned: TuneReport, records: dict[str, _Records]) -> dict[str, PriorResult]:
    """The result of each representative that has a schedule, by its name."""
    found = {}
    for line in tuned.tasks:
        known = records.get(line.task)
        if known is not None and known.searched:
            default = next(map(Trial.from_record, known.default), None)
            finished = "crashed while it was tuned" if line.status == "crashed" else None
            trials = list(map(Trial.from_record, known.searched))
            found[line.task] = PriorResult(trials, default, finished)
    return found


def _banked(
    selection: Selection, bank: Bank | None, options: ShareOptions
) -> dict[str, list[Donation]]:
    """The schedules of the bank's donors, by their names."""
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
    """Tasks that the bank itself holds: the donor's name, and its latency there in ms."""
    if bank is None or options.measure_known:
        return {}
    found = {}
    for name, (first, *_) in sorted(selection.banked.items()):
        entry = bank.entries[first.workload]
        # If the default schedule was faster, there is no schedule to take.
        if first.workload == by_name[name].info.workload and entry.best_ms <= entry.fastest_ms:
            found[name] = BankedSchedule(first.name, entry.best_ms)
    return found


def _donations(records: list[ms.database.TuningRecord], options: ShareOptions) -> list[Donation]:
    """The best schedules that a search found, as donations."""
    return [Donation.of(record.trace) for record in records[: options.count(len(records))]]
