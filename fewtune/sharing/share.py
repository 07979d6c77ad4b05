"""Share schedules: what representatives, or a bank, have to give, moved and measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from fewtune.artifacts import Curve, Fingerprint, LogInfo, Selection, ShareReport, TuneReport
from fewtune.bank.bank import Bank
from fewtune.errors import InputError
from fewtune.measure.device import device_of
from fewtune.options import ShareOptions
from fewtune.predictor import chosen_digest
from fewtune.runtime.target import target_from_json
from fewtune.runtime.tvm import ms
from fewtune.schedule.space.design_space import sampling
from fewtune.schedule.space.transfer import Donation
from fewtune.search.warm_start import measured_trials
from fewtune.sharing.report import (
    finals_of,
    share_curve,
    share_rounds,
    task_line,
)
from fewtune.storage.database import RECORDS, best_trials, read_database, write_database
from fewtune.storage.log_archive import log_info, require_own
from fewtune.task.extract import Task
from fewtune.timing.cache_state import MEASURING
from fewtune.trial.trial import Trial
from fewtune.tuning.child_process import supervise
from fewtune.tuning.run_state import RunState
from fewtune.tuning.task_state import PriorResult
from fewtune.util.files import file_sha256

# Of a task that was to be tuned: nothing was found, and nothing speaks against looking again.
_WITHOUT_SCHEDULE = ("not_reached", "no_valid_schedule")


def share_schedules(
    tasks: list[Task],
    selection: Selection,
    tune_directory: Path,
    fingerprint: Fingerprint,
    options: ShareOptions,
    journal_directory: Path,
    directory: Path,
    progress_path: Path | None = None,
    bank_directory: Path | None = None,
    model_directory: Path | None = None,
    run: Callable[..., list[dict[str, Any]]] | None = None,
) -> ShareReport:
    """Give every task that was not tuned a schedule; write the log of all into ``directory``.

    Parameters
    ----------
    tasks : list of Task
    selection : Selection
    tune_directory : Path
        What the tune stage wrote.
    fingerprint : Fingerprint
    options : ShareOptions
    journal_directory : Path
        Scratch that outlives a kill.
    directory : Path
        Gets ``share.json``, ``curve.json`` and TVM's two database files.
    progress_path : Path, optional
    bank_directory : Path, optional
        What `fewtune.bank` wrote: needed where the selection takes schedules from it.
    model_directory : Path, optional
        The tasks' own, with the model's skeleton: what the finals in the model need.
    run : callable, optional
        What carries the work out; `fewtune.tuning.child_process.supervise` unless given.

    Raises
    ------
    FewtuneError
        What stopped the measuring, in one line.
    """
    by_name = {task.info.name: task for task in tasks}
    require_own(tune_directory, fingerprint)
    tuned = TuneReport.read(tune_directory)
    database = read_database(tune_directory)
    bank = None
    if bank_directory is not None:
        require_own(bank_directory, fingerprint)
        bank = Bank.read(bank_directory)
    takers = _takers(selection, tuned)
    events: list[dict[str, Any]] = []
    earlier: dict[str, PriorResult] = {}
    if takers:
        records = {name: _parted(database, by_name[name]) for name in selection.representatives}
        is_checked = LogInfo.read(tune_directory).checked
        earlier = _earlier(tuned, records, True if is_checked else None)
        job = {
            "takers": takers,
            "donations": {
                **{name: _donations(each.searched, options) for name, each in records.items()},
                **_banked(selection, bank, options),
            },
            "known": _known(selection, by_name, bank, options),
            "bank": str(bank_directory) if bank is not None else None,
            "tuned": {name: found.as_json() for name, found in earlier.items()},
            "cold_weights": tuned.cold_weights,
            "options": options.model_dump(mode="json"),
            "model": str(model_directory) if model_directory is not None else None,
        }
        header = {
            "machine": fingerprint.identity(),
            "target": fingerprint.target,
            "workloads": {name: by_name[name].info.workload for name in takers},
            "takers": takers,
            "log": file_sha256(tune_directory / RECORDS)[:16],
            "bank": bank.digest if bank is not None else None,
            "predictor": chosen_digest(options.predictor),
            "cold_weights": tuned.cold_weights,
            "measuring": MEASURING,
            "options": options.model_dump(mode="json"),
        }
        events = (run or supervise)(
            "fewtune.sharing.job:share_session",
            job,
            [by_name[name] for name in dict.fromkeys([*takers, *selection.representatives])],
            fingerprint,
            header,
            journal_directory,
            progress_path,
        )
    names = [*takers, *earlier]
    state = RunState([by_name[name] for name in names], names, earlier)
    state.replay(events)
    takes = {name: state.tasks[name] for name in takers}
    decided = {name: state.tasks[name] for name in sorted(earlier) if state.tasks[name].chosen}
    trials = {name: known.published() for name, known in {**takes, **decided}.items()}
    _write_log(directory, by_name, database, trials, fingerprint)
    share_curve(Curve.read(tune_directory), tuned, state, events).write(directory)
    finals, finals_note = finals_of(state, events)
    lacking = device_of(fingerprint).can.lacking
    if lacking:
        finals_note = f"skipped, since {fingerprint.device} cannot: {', '.join(lacking)}"
    report = ShareReport(
        model=selection.model,
        strategy=selection.strategy,
        tasks=[task_line(known, takers[name], events) for name, known in takes.items()],
        representatives=[known.report() for known in decided.values()],
        rounds=share_rounds(state, events),
        finals=finals,
        finals_note=finals_note,
        trials=state.trials,
        sharing_s=round(state.elapsed_s, 3),
        stolen_s=round(state.stolen_s, 3),
        repeated_measurements=state.repeats,
        stopped_by=state.stopped_by or "nothing_to_tune",
    )
    report.write(directory)
    return report


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
) -> dict[str, list[dict[str, Any]]]:
    """What the donors in the bank have to give, by their names."""
    donors = {d.name: d for donors in selection.banked.values() for d in donors}
    if not donors:
        return {}
    if bank is None:
        raise InputError("the selection takes schedules from a bank, and none is given")
    found = {}
    for name, donor in sorted(donors.items()):
        given = bank.donations(donor.workload)
        found[name] = [donation.as_json() for donation in given[: options.count(len(given))]]
    return found


def _known(
    selection: Selection, by_name: dict[str, Task], bank: Bank | None, options: ShareOptions
) -> dict[str, tuple[str, float]]:
    """Tasks that the bank holds themselves: the donor's name, and the latency it had, in ms."""
    if bank is None or options.measure_known:
        return {}
    found = {}
    for name, (first, *_) in sorted(selection.banked.items()):
        entry = bank.entries[first.workload]
        # Where the default schedule was the faster one, there is nothing to take.
        if first.workload == by_name[name].info.workload and entry.best_ms <= entry.fastest_ms:
            found[name] = (first.name, entry.best_ms)
    return found


def _donations(
    records: list[ms.database.TuningRecord], options: ShareOptions
) -> list[dict[str, Any]]:
    """The best of what a search found, as it is given."""
    return [Donation.of(r.trace).as_json() for r in records[: options.count(len(records))]]


def _write_log(
    directory: Path,
    by_name: dict[str, Task],
    database: ms.database.Database,
    trials: dict[str, list[Trial]],
    fingerprint: Fingerprint,
) -> None:
    """Write the log of all tasks: the tune stage's records, and what sharing measured."""
    known = [t for n, t in by_name.items() if n not in trials and database.has_workload(t.mod)]
    everything = {**trials, **measured_trials(database, known)}
    log_info(fingerprint).write(directory)
    modules = {name: by_name[name].mod for name in sorted(everything)}
    write_database(directory, modules, everything, target_from_json(fingerprint.target))
