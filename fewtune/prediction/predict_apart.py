"""One-shot in processes of their own: a task that TVM crashes on keeps its default schedule.

Each process chooses schedules for a part of the tasks. There is one for each core: nothing is
measured, so none disturbs another.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from fewtune.artifacts import Fingerprint, Prediction, PredictReport, TaskTable
from fewtune.measure.device import device_of
from fewtune.options import PredictOptions
from fewtune.prediction.predict import Choosing, Chosen, default_of, points_by_task
from fewtune.process.apart import Job, at, in_step, run_each_apart
from fewtune.runtime.target import target_from_json
from fewtune.runtime.tvm import usable_cores
from fewtune.storage.database import log_info, write_database
from fewtune.task.extract import is_worth_searching, read_tasks, twins_of

# The folder of the library of what was predicted, beside its log.
FIRST_LIBRARY = "library"
# Each process reads the tasks and the predictor, which is not worth it for fewer tasks.
_LEAST_TASKS, _MOST_PROCESSES = 3, 8


class PredictJob(Job):
    """The arguments of `predict_apart`; a child gets a lot of tasks.

    Attributes
    ----------
    tasks, fingerprint : Path
        Of the model, and of the machine.
    options : PredictOptions
    directory : Path
        Gets ``predict.json``, ``log.json`` and TVM's two database files.
    model, strategy : str
        Named in the report.
    bank : Path, optional
        What `fewtune.bank` wrote.
    lot : dict of int
        By task, the points that are rated.
    """

    tasks: Path
    fingerprint: Path
    options: PredictOptions
    directory: Path
    model: str
    strategy: str
    bank: Path | None = None
    lot: dict[str, int] = Field(default_factory=dict)

    def run(self) -> tuple[dict[str, Chosen], Prediction]:
        """Choose for a lot in this process.

        A task's schedule does not depend on others but its twin of the largest shape.
        """
        tasks, fingerprint = read_tasks(self.tasks), Fingerprint.read(self.fingerprint)
        choosing = Choosing(tasks, fingerprint, self.options, self.bank)
        wanted = [task for task in tasks if task.info.name in self.lot]
        twins = twins_of([task.info for task in wanted])
        wanted.sort(key=lambda task: task.info.name in twins)
        chosen: dict[str, Chosen] = {}
        at("it was reading what it needs", optional=[task.info.name for task in wanted])
        for task in wanted:
            name = task.info.name
            if name in self.left_out:
                chosen[name] = default_of(task, self.left_out[name])
                continue
            at(f"it was predicting a schedule of {name}")
            with in_step(name):
                chosen[name] = choosing.chosen(task, self.lot[name], twins.get(name))
        return chosen, choosing.prediction


def predict_apart(job: PredictJob, processes: int | None = None) -> PredictReport:
    """Predict a schedule of every task that is worth it, and write their log.

    Parameters
    ----------
    job : PredictJob
    processes : int, optional
        One for each core unless given, at most eight.

    Raises
    ------
    InputError
        If the predictor or the bank cannot be used here, or if native code crashes whatever is
        left out.
    MachineError
        If the system kills a process because memory ran out.
    """
    began_s = time.perf_counter()
    infos = TaskTable.read(job.tasks).tasks
    worth = [info for info in infos if is_worth_searching(info, job.options.min_share)]
    points = points_by_task(worth)
    count = min(processes or usable_cores(), _MOST_PROCESSES, max(1, len(points) // _LEAST_TASKS))
    each_lot = [job.model_copy(update={"lot": lot}) for lot in lots(points, count, twins_of(worth))]
    found = run_each_apart(each_lot)
    chosen = {name: each for some, _ in found for name, each in some.items()}
    fingerprint, tasks = Fingerprint.read(job.fingerprint), read_tasks(job.tasks)
    lines = [chosen[info.name].line for info in infos if info.name in chosen]
    # Marked as predicted, so that no bank, merged log or later search takes them for measured.
    marks = {"predicted": True, "checked": device_of(fingerprint).can.shared_cores}
    log_info(fingerprint).model_copy(update=marks).write(job.directory)
    trials = {name: [each.trial] for name, each in chosen.items() if each.trial is not None}
    modules = {task.info.name: task.mod for task in tasks if task.info.name in trials}
    write_database(job.directory, modules, trials, target_from_json(fingerprint.target))
    report = PredictReport(
        model=job.model,
        strategy=job.strategy,
        tasks=lines,
        prediction=found[0][1],
        predicting_s=round(time.perf_counter() - began_s, 3),
    )
    report.write(job.directory)
    return report


def lots(points: Mapping[str, int], count: int, twins: Mapping[str, str]) -> list[dict[str, int]]:
    """Deal tasks, those of the most points first, so that lots take about the same time.

    Parameters
    ----------
    points : mapping of str to int
        Points that are rated of each task.
    count : int
        Of lots.
    twins : mapping of str to str
        A task and its twin, which are in one lot.
    """
    families: dict[str, dict[str, int]] = {}
    for name in sorted(points, key=lambda name: (-points[name], name)):
        families.setdefault(twins.get(name, name), {})[name] = points[name]
    dealt = [*families.values()]
    return [{n: each[n] for each in dealt[place::count] for n in each} for place in range(count)]
