"""Share schedules: those of representatives, or of a bank, are moved and measured."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from fewtune.artifacts import (
    Curve,
    Fingerprint,
    LogInfo,
    Selection,
    ShareReport,
    Skeleton,
    TuneReport,
)
from fewtune.bank.bank import Bank
from fewtune.errors import InputError
from fewtune.measure.device import device_of
from fewtune.options import ShareOptions
from fewtune.predictor import chosen_digest
from fewtune.runtime.target import target_from_json
from fewtune.runtime.tvm import ms
from fewtune.search.warm_start import measured_trials
from fewtune.sharing.job import RULES, ShareJob, SharingRules
from fewtune.sharing.plan import plan
from fewtune.sharing.report import finals_of, share_curve, share_rounds, task_line
from fewtune.storage.database import RECORDS, WORKLOADS, read_database, seal, write_database
from fewtune.storage.log_archive import log_info, require_own
from fewtune.task.extract import Task, read_tasks
from fewtune.timing.cache_state import MEASURING
from fewtune.trial.trial import Trial
from fewtune.tuning.child_process import supervise
from fewtune.tuning.job import Runner, Work, Workplace
from fewtune.tuning.run_state import RunState
from fewtune.tuning.wrong_schedules import write_wrong_schedules
from fewtune.util.files import file_sha256


class SharingWork(ShareJob):
    """A job of sharing, with the session that does it."""

    def run(self, place: Workplace) -> None:
        """Share the schedules of the job's donors; see `fewtune.sharing.share`."""
        # Only the child needs the session and all that it imports.
        from fewtune.finals.finals import Finals
        from fewtune.sharing.session import Sharing

        finals = None
        most, directory = self.options.finals, self.model
        # Finals need a model that runs on this processor.
        if most > 1 and directory is not None and place.device.can.finals_in_model:
            if (directory / Skeleton.file_name).is_file():
                tasks, skeleton = read_tasks(directory), Skeleton.read(directory)
                finals = Finals(skeleton, tasks, place.target, most, self.rules.finalists)
            else:
                place.progress.say(
                    f"no finals in the model: {directory} has no {Skeleton.file_name}"
                )
        Sharing(self, place, finals).run()


def share_schedules(  # noqa: PLR0913 (what a stage reads and writes)
    tasks: list[Task],
    selection: Selection,
    tune_directory: Path,
    fingerprint: Fingerprint,
    options: ShareOptions,
    journal_directory: Path,
    directory: Path,
    bank_directory: Path | None = None,
    model_directory: Path | None = None,
    run: Runner | None = None,
    rules: SharingRules = RULES,
) -> ShareReport:
    """Give every task that was not tuned a schedule; write the log of all into ``directory``.

    Parameters
    ----------
    tasks : list of Task
    selection : Selection
    tune_directory : Path
        Output of the tune stage.
    fingerprint : Fingerprint
    options : ShareOptions
    journal_directory : Path
        Scratch that outlives a kill.
    directory : Path
        Gets ``share.json``, ``curve.json`` and TVM's two database files.
    bank_directory : Path, optional
        Folder of a bank; needed if the selection takes schedules from it.
    model_directory : Path, optional
        The tasks' folder, with the model's skeleton, for finals in the model.
    run : callable, optional
        Runs the work; `fewtune.tuning.child_process.supervise` unless given.
    rules : SharingRules

    Raises
    ------
    FewtuneError
        What stopped the measuring, in one line.
    """
    by_name = {task.info.name: task for task in tasks}
    tuned, database = _read_log(tune_directory, fingerprint)
    bank = None
    if bank_directory is not None:
        require_own(bank_directory, fingerprint)
        bank = Bank.read(bank_directory)
    job = replace(
        plan(by_name, selection, tuned, database, options, bank),
        bank=bank_directory,
        model=model_directory,
        rules=rules,
    )
    events: list[dict[str, Any]] = []
    if job.takers:
        names = dict.fromkeys([*job.takers, *selection.representatives])
        log = file_sha256(tune_directory / RECORDS)[:16]
        events = (run or supervise)(
            Work(
                SharingWork(**vars(job)),
                [by_name[name] for name in names],
                fingerprint,
                _header(job, by_name, fingerprint, log, bank),
                journal_directory,
            )
        )
    named = [*job.takers, *job.tuned]
    state = RunState([by_name[name] for name in named], named, job.tuned)
    state.replay(events)
    log_info(fingerprint).write(directory)
    trials = _trials(job, state)
    if trials:
        _write_log(directory, by_name, database, trials, fingerprint)
    else:
        # To write all trials of a full tuning anew takes 10 s.
        for name in (WORKLOADS, RECORDS):
            shutil.copyfile(tune_directory / name, directory / name)
        seal(directory)
    write_wrong_schedules(directory, state.tasks.values())
    share_curve(Curve.read(tune_directory), tuned, state, events).write(directory)
    report = _report(selection, job, state, events, fingerprint)
    report.write(directory)
    return report


def _read_log(directory: Path, fingerprint: Fingerprint) -> tuple[TuneReport, ms.database.Database]:
    """The tune stage's report and database; refused if another machine's, or not checked."""
    require_own(directory, fingerprint)
    if not LogInfo.read(directory).checked:
        raise InputError(
            f"{directory} is a log whose outputs were not compared: tune the model again"
        )
    return TuneReport.read(directory), read_database(directory)


def _header(
    job: ShareJob,
    by_name: dict[str, Task],
    fingerprint: Fingerprint,
    log: str,
    bank: Bank | None,
) -> dict[str, Any]:
    """Everything that the trials of a journal depend on."""
    header = {
        "machine": fingerprint.identity(),
        "target": fingerprint.target,
        "workloads": {name: by_name[name].info.workload for name in job.takers},
        "takers": job.takers,
        "log": log,
        "bank": bank.digest if bank is not None else None,
        "predictor": chosen_digest(job.options.predictor),
        "cold_weights": job.cold_weights,
        "measuring": MEASURING,
        "options": job.options.model_dump(mode="json"),
    }
    # Journals of earlier versions name no rules: theirs were these.
    return header if job.rules == RULES else {**header, "rules": job.rules.as_json()}


def _decided(job: ShareJob, state: RunState) -> list[str]:
    """The tuned tasks whose schedule finals chose, in order."""
    return [name for name in sorted(job.tuned) if state.tasks[name].chosen]


def _trials(job: ShareJob, state: RunState) -> dict[str, list[Trial]]:
    """The log's trials of each task that sharing decided on."""
    names = [*job.takers, *_decided(job, state)]
    return {name: state.tasks[name].published() for name in names}


def _report(
    selection: Selection,
    job: ShareJob,
    state: RunState,
    events: list[dict[str, Any]],
    fingerprint: Fingerprint,
) -> ShareReport:
    finals, finals_note = finals_of(state, events)
    lacking = device_of(fingerprint).can.lacking
    if lacking:
        finals_note = f"skipped, since {fingerprint.device} cannot: {', '.join(lacking)}"
    return ShareReport(
        model=selection.model,
        strategy=selection.strategy,
        tasks=[task_line(state.tasks[name], donors, events) for name, donors in job.takers.items()],
        representatives=[state.tasks[name].report() for name in _decided(job, state)],
        rounds=share_rounds(state, events, job.rules),
        finals=finals,
        finals_note=finals_note,
        trials=state.trials,
        sharing_s=round(state.elapsed_s, 3),
        stolen_s=round(state.stolen_s, 3),
        stopped_by=state.stopped_by or "nothing_to_tune",
    )


def _write_log(
    directory: Path,
    by_name: dict[str, Task],
    database: ms.database.Database,
    trials: dict[str, list[Trial]],
    fingerprint: Fingerprint,
) -> None:
    """Write the log of all tasks: the tune stage's records, and the trials of sharing."""
    known = [t for n, t in by_name.items() if n not in trials and database.has_workload(t.mod)]
    everything = {**trials, **measured_trials(database, known)}
    modules = {name: by_name[name].mod for name in sorted(everything)}
    write_database(directory, modules, everything, target_from_json(fingerprint.target))
