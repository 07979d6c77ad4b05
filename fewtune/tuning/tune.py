"""Tune the representatives of a selection and write the tuning log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fewtune.artifacts import Curve, Fingerprint, Selection, TuneReport, text_sha256
from fewtune.measure.device import device_of
from fewtune.options import DEFAULT_STRATEGY, TuneOptions
from fewtune.predictor import NEVER, chosen_digest
from fewtune.runtime.target import target_from_json
from fewtune.storage.database import log_info, read_seeds, write_database
from fewtune.task.extract import Task
from fewtune.timing.timer import weights_outgrow_cache
from fewtune.tuning.child_process import measured
from fewtune.tuning.job import Runner
from fewtune.tuning.run_state import RunState
from fewtune.tuning.session import TuneJob
from fewtune.tuning.wrong_schedules import write_wrong_schedules

# A resumed run may have another budget. All other options must be equal.
_BUDGET = {
    "trials_per_task",
    "budget_s",
    "least_gain",
    "start_from",
}


def run_session(
    tasks: list[Task],
    job: TuneJob,
    fingerprint: Fingerprint,
    journal_directory: Path,
    run: Runner | None = None,
) -> RunState:
    """Tune tasks; `measured` says how.

    Returns
    -------
    state : RunState
        Everything measured. The journal stays: the caller removes it once the result is written.
    """
    options, more = job.options, dict[str, Any]()
    if job.stands_for:
        # It decides which task gets the next batch.
        more["stands_for"] = job.stands_for
    if job.seeds:
        more["seeds"] = text_sha256(str(sorted(job.seeds.items())))[:16]
    events = measured(
        job,
        tasks,
        fingerprint,
        journal_directory,
        run,
        tuned=sorted(job.tuned),
        cold_weights=job.cold_weights,
        search=options.model_dump(mode="json", exclude=_BUDGET),
        predictor=chosen_digest(options.predictor),
        **more,
    )
    state = RunState(tasks, job.tuned)
    state.replay(events)
    return state


def tune(  # noqa: PLR0913 (what a stage reads and writes)
    tasks: list[Task],
    selection: Selection,
    fingerprint: Fingerprint,
    options: TuneOptions,
    journal_directory: Path,
    directory: Path,
    run: Runner | None = None,
) -> TuneReport:
    """Tune the representatives of a selection and write the tuning log into ``directory``.

    The log of a strategy that predicts is empty.

    Parameters
    ----------
    tasks : list of Task
        The model's tasks.
    selection : Selection
    fingerprint : Fingerprint
    options : TuneOptions
    journal_directory : Path
        Scratch that outlives a kill.
    directory : Path
        Gets ``tune.json``, ``curve.json``, ``log.json`` and TVM's two database files.
    run : callable, optional
        As of `run_session`.

    Raises
    ------
    FewtuneError
        As `run_session`.
    """
    searches_all = options.strategy != DEFAULT_STRATEGY or options.predictor == NEVER
    tuned = selection.worth if searches_all or selection.method == "all" else selection.unknown
    predicts = options.predicts(selection.method)
    tuned = [] if predicts else tuned
    kept = [task for task in tasks if task.info.name in set(tuned)]
    workloads = {task.info.name: task.info.workload for task in kept}
    if selection.method == "all":
        # The baseline of selective tuning: every task, every trial.
        options = options.model_copy(update={"least_gain": 0.0})
    shares = {task.info.name: task.info.share for task in tasks}
    can = device_of(fingerprint).can
    cold_weights = can.cold_caches and weights_outgrow_cache(tasks)
    job = TuneJob(
        tuned,
        options,
        # Nothing is begun from logs where nothing is measured: those of others do not matter.
        {} if predicts else read_seeds(Path(options.start_from), workloads, fingerprint),
        cold_weights,
        stands_for(kept, tasks, selection),
        covered=sum(shares[name] for cluster in selection.clusters for name in cluster.members),
    )
    state = run_session(kept, job, fingerprint, journal_directory, run)
    info = log_info(fingerprint)
    info.model_copy(update={"predicted": predicts, "checked": not predicts}).write(directory)
    write_database(
        directory,
        {name: known.task.mod for name, known in state.tasks.items()},
        {name: known.published() for name, known in state.tasks.items()},
        target_from_json(fingerprint.target),
    )
    write_wrong_schedules(directory, state.tasks.values())
    Curve(points=state.curve).write(directory)
    report = _report(selection, options, state, cold_weights=cold_weights)
    if predicts:
        report = report.model_copy(update={"stopped_by": "predicted"})
    report.write(directory)
    return report


def _report(
    selection: Selection, options: TuneOptions, state: RunState, *, cold_weights: bool
) -> TuneReport:
    return TuneReport(
        model=selection.model,
        strategy=selection.strategy,
        tasks=[state.tasks[name].report() for name in sorted(state.tasks)],
        trials=state.trials,
        trials_per_task=options.trials_per_task,
        tuning_s=round(state.elapsed_s, 3),
        stolen_s=round(state.stolen_s, 3),
        search_s=round(state.phases.search_s, 3),
        build_s=round(state.phases.build_s, 3),
        run_s=round(state.phases.run_s, 3),
        model_update_s=round(state.phases.model_update_s, 3),
        check_s=round(state.phases.check_s, 3),
        cold_weights=cold_weights,
        stopped_by=state.stopped_by or "nothing_to_tune",
    )


def stands_for(kept: list[Task], tasks: list[Task], selection: Selection) -> dict[str, float]:
    """The share of each cluster over its representative's, by the estimate of `TaskInfo`.

    Parameters
    ----------
    kept : list of Task
        The representatives.
    tasks : list of Task
        All tasks of the model.
    selection : Selection
    """
    shares = {task.info.name: task.info.share for task in tasks}
    wholes = {
        cluster.representative: sum(shares[member] for member in cluster.members)
        for cluster in selection.clusters
    }
    return {
        task.info.name: wholes[task.info.name] / task.info.share
        for task in kept
        if task.info.share > 0
    }
