"""One-shot in processes of their own: a task that TVM crashes on keeps its default schedule.

Each process chooses schedules for a part of the tasks. There is one for each core: nothing is
measured, so none disturbs another.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from fewtune.artifacts import Fingerprint, Prediction, Selection, ShareReport, TaskTable
from fewtune.oneshot.predict import Chosen, choose_schedules, points_by_task
from fewtune.oneshot.write import write_prediction
from fewtune.options import ShareOptions
from fewtune.process.apart import Job, run_each_apart
from fewtune.runtime.tvm import usable_cores
from fewtune.task.extract import read_tasks

# A task takes a space and a schedule besides its points: counted as so many points.
_POINTS_OF_A_SPACE = 1_000
# Each process reads the tasks and the predictor, which is not worth it for fewer tasks.
_LEAST_TASKS, _MOST_PROCESSES = 3, 8


class PredictJob(Job):
    """The arguments of `predict_apart`; a child gets a lot of tasks.

    Attributes
    ----------
    task_directory, select_directory : Path
        Of the model's tasks, and their selection.
    fingerprint : Path
        The machine's file.
    options : ShareOptions
        Its predictor and seed are used.
    directory : Path
        Gets what `fewtune.sharing.share.share_schedules` writes there.
    bank_directory : Path, optional
        What `fewtune.bank` wrote.
    lot : dict of int
        By task, the points that are rated.
    """

    task_directory: Path
    select_directory: Path
    fingerprint: Path
    options: ShareOptions
    directory: Path
    bank_directory: Path | None = None
    lot: dict[str, int] = Field(default_factory=dict)

    def run(self) -> dict[str, Any]:
        """Choose for a lot in this process."""
        chosen, prediction = choose_schedules(
            read_tasks(self.task_directory),
            self.lot,
            Fingerprint.read(self.fingerprint),
            self.options,
            self.bank_directory,
            left_out=self.left_out,
        )
        return {
            "chosen": {name: each.as_json() for name, each in chosen.items()},
            "prediction": prediction.model_dump(mode="json"),
        }


def predict_apart(job: PredictJob, processes: int | None = None) -> ShareReport:
    """Predict a schedule of every task that is not set aside, and write their log.

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
    selection = Selection.read(job.select_directory)
    points = points_by_task(TaskTable.read(job.task_directory).tasks, selection)
    count = min(processes or usable_cores(), _MOST_PROCESSES, max(1, len(points) // _LEAST_TASKS))
    each_lot = [job.model_copy(update={"lot": lot}) for lot in lots(points, count)]
    found = run_each_apart(each_lot)
    chosen = {
        name: Chosen.from_json(values) for each in found for name, values in each["chosen"].items()
    }
    return write_prediction(
        read_tasks(job.task_directory),
        selection,
        Fingerprint.read(job.fingerprint),
        chosen,
        Prediction.model_validate(found[0]["prediction"]),
        began_s,
        job.directory,
    )


def lots(points: Mapping[str, int], count: int) -> list[dict[str, int]]:
    """Divide tasks into ``count`` lots that take about the same time.

    Parameters
    ----------
    points : mapping of str to int
        Points that are rated of each task.
    count : int
    """
    made: list[dict[str, int]] = [{} for _ in range(count)]
    loads = [0] * count
    for name in sorted(points, key=lambda name: (-points[name], name)):
        lightest = loads.index(min(loads))
        made[lightest][name] = points[name]
        loads[lightest] += points[name] + _POINTS_OF_A_SPACE
    return made
