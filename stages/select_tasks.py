"""Stage select_tasks: which tasks are tuned, and which take their schedules from those."""

from __future__ import annotations

import time

from fewtune.artifacts import PredictReport, SelectionTiming, TaskTable
from fewtune.bank.bank import Bank
from fewtune.runtime.target import target_from_json
from fewtune.selection.heat_map import write_similarity
from fewtune.selection.select import select_tasks
from fewtune.stages.command import Stage, main
from fewtune.task.extract import read_tasks
from fewtune.util.files import whole_directory


def run(stage: Stage) -> None:
    """Compare the tasks' tuning spaces and choose a representative of each cluster."""
    places = stage.places
    tasks = read_tasks(places.tasks(stage.model))
    target = target_from_json(TaskTable.read(places.tasks(stage.model)).target)
    start = time.perf_counter()
    selection, matrix = select_tasks(
        tasks,
        stage.options,
        target=target,
        model=stage.model,
        strategy=stage.strategy,
        bank=Bank.read(places.bank(stage.strategy)),
        predicted=PredictReport.read(places.predicted(*stage.of)),
    )
    timing = SelectionTiming(selecting_s=round(time.perf_counter() - start, 3))
    with whole_directory(places.selected(*stage.of)) as directory:
        selection.write(directory)
        timing.write(directory)
        write_similarity(selection, matrix, directory)
    stage.say(
        f"{len(selection.clusters)} clusters, "
        f"{len(selection.known)} tasks are known to the predictor, "
        f"{len(selection.unknown)} to search, "
        + (f"{len(selection.banked)} from the bank, " if selection.banked else "")
        + f"{len(selection.set_aside)} set aside"
    )


if __name__ == "__main__":
    main("select_tasks", run, "model", "strategy")
