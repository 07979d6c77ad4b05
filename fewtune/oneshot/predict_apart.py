"""One-shot in processes of their own: a task that TVM crashes on keeps its default schedule.

Each process chooses schedules for a part of the tasks. There is one for each core: nothing is
measured, so none disturbs another.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewtune.artifacts import Fingerprint, Prediction, Selection, ShareReport, TaskTable
from fewtune.oneshot.predict import Chosen, choose_schedules, points_by_task
from fewtune.oneshot.write import write_prediction
from fewtune.options import ShareOptions
from fewtune.process.apart import LEFT_OUT, run_each_apart
from fewtune.runtime.tvm import usable_cores
from fewtune.task.extract import read_tasks

# A task takes a space and a schedule besides its points: counted as so many points.
_POINTS_OF_A_SPACE = 1_000
# Each process reads the tasks and the predictor, which is not worth it for fewer tasks.
_LEAST_TASKS, _MOST_PROCESSES = 3, 8


@dataclass(frozen=True)
class PredictJob:
    """The arguments of `predict_apart`.

    Parameters
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
    """

    task_directory: Path
    select_directory: Path
    fingerprint: Path
    options: ShareOptions
    directory: Path
    bank_directory: Path | None = None

    def of_lot(self, points: Mapping[str, int]) -> dict[str, Any]:
        """What a process needs to choose for some tasks, as JSON values; paths are absolute."""
        return {
            "tasks": str(self.task_directory.absolute()),
            "fingerprint": str(self.fingerprint.absolute()),
            "options": self.options.model_dump(mode="json"),
            "bank": None if self.bank_directory is None else str(self.bank_directory.absolute()),
            "points": points,
        }


def predict_apart(
    job: PredictJob, processes: int | None = None, work: str = f"{__name__}:choose_here"
) -> ShareReport:
    """Predict a schedule of every task that is not set aside, and write their log.

    Parameters
    ----------
    job : PredictJob
    processes : int, optional
        One for each core unless given, at most eight.
    work : str
        What the processes run.

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
    found = run_each_apart(work, [job.of_lot(lot) for lot in lots(points, count)])
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


def choose_here(job: dict[str, Any]) -> dict[str, Any]:
    """Choose for a lot in this process; ``job`` is `PredictJob.of_lot`'s."""
    chosen, prediction = choose_schedules(
        read_tasks(Path(job["tasks"])),
        job["points"],
        Fingerprint.read(Path(job["fingerprint"])),
        ShareOptions.model_validate(job["options"]),
        None if job["bank"] is None else Path(job["bank"]),
        left_out=job[LEFT_OUT],
    )
    return {
        "chosen": {name: each.as_json() for name, each in chosen.items()},
        "prediction": prediction.model_dump(mode="json"),
    }
