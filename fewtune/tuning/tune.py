"""Tune the representatives of a selection and write the tuning log."""

from __future__ import annotations

from pathlib import Path

from fewtune.artifacts import Curve, Fingerprint, Selection, TuneReport
from fewtune.measure.device import device_of
from fewtune.options import DEFAULT_STRATEGY, TuneOptions
from fewtune.predictor import NEVER
from fewtune.predictor.features import weights_outgrow_cache
from fewtune.storage.database import log_info, read_seeds
from fewtune.task.extract import Task
from fewtune.tuning.job import SessionJob, measured
from fewtune.tuning.judges import Entry
from fewtune.tuning.promise import promises
from fewtune.tuning.session import Session
from fewtune.tuning.state import Start


class Tuning(Session):
    """Searches one task after the other, batch by batch; several if several boards measure."""

    def entries(self) -> list[Entry]:
        """Batches of the tasks from which most is expected.

        A task that was not searched yet comes before all others: nothing is known of it.
        """
        states, options = [*self.state.tasks.values()], self.options
        promised = promises(states)
        waiting = [each for each in states if not each.finished]
        waiting = [s for s in waiting if not s.gains or promised[s.name] >= options.least_gain]
        waiting.sort(key=lambda state: (bool(state.gains), -promised[state.name], state.name))
        found, room = list[Entry](), self.job.total_trials - self.state.trials
        for state in waiting:
            if room <= 0 or len(found) == self.measurer.pool.devices:
                break
            # The first batch of a task leaves room for the other tasks.
            most = options.batch_size if state.trials else options.trials_per_task
            entry = self.entered(state, min(room, most, options.batch_size))
            room -= len(entry.donors)
            if entry.donors:
                found.append(entry)
            else:
                self.note({"kind": "end", "task": state.name, "why": "design space exhausted"})
        return found


class TuneJob(SessionJob):
    """The work of a tuning session."""

    session = Tuning


def tune(
    tasks: list[Task],
    selection: Selection,
    fingerprint: Fingerprint,
    options: TuneOptions,
    journal_directory: Path,
    directory: Path,
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

    Raises
    ------
    FewtuneError
        What stopped the measuring, in one line.
    """
    searches_all = options.strategy != DEFAULT_STRATEGY or options.predictor == NEVER
    tuned = selection.worth if searches_all or selection.method == "all" else selection.unknown
    predicts = options.predicts(selection.method)
    kept = [task for task in tasks if task.info.name in tuned and not predicts]
    if selection.method == "all":
        # The baseline of selective tuning: every task, every trial.
        options = options.model_copy(update={"least_gain": 0.0})
    workloads = {task.info.name: task.info.workload for task in kept}
    # Logs of others do not matter where nothing is measured.
    seeds = read_seeds(Path(options.start_from), workloads, fingerprint) if kept else {}
    shares = {task.info.name: task.info.share for task in tasks}
    cold_weights = device_of(fingerprint).can.shared_cores and weights_outgrow_cache(tasks)
    job = TuneJob(
        tasks=kept,
        fingerprint=fingerprint,
        options=options,
        journals=journal_directory,
        starts={
            each.representative: Start(
                serves=sum(shares[member] for member in each.members),
                seeds=seeds.get(each.representative, []),
            )
            for each in selection.clusters
            if each.representative in workloads
        },
        cold_weights=cold_weights,
    )
    state = measured(job)
    info = log_info(fingerprint)
    state.write(info.model_copy(update={"predicted": predicts, "checked": not predicts}), directory)
    Curve(points=state.curve).write(directory)
    report = TuneReport(
        model=selection.model,
        strategy=selection.strategy,
        tasks=[state.tasks[name].report() for name in sorted(state.tasks)],
        trials=state.trials,
        trials_per_task=options.trials_per_task,
        tuning_s=round(state.elapsed_s, 3),
        stolen_s=round(state.stolen_s, 3),
        **state.phases.as_json(),
        cold_weights=cold_weights,
        stopped_by="predicted" if predicts else state.stopped_by,
    )
    report.write(directory)
    return report
