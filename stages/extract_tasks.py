"""Stage extract_tasks: the model's distinct kernels as MetaSchedule tasks."""

from __future__ import annotations

from fewtune.artifacts import ImportReport
from fewtune.errors import last_line
from fewtune.model.call_graph import make_skeleton
from fewtune.model.import_model import read_lowered
from fewtune.stages.command import Stage, main
from fewtune.task.extract import extract_tasks, write_tasks
from fewtune.util.files import whole_directory


def run(stage: Stage) -> None:
    """List the model's tasks with their weight, shapes, FLOPs and bytes, and its calls of them."""
    imported = stage.places.imported(stage.model)
    lowered = read_lowered(imported)
    tasks = extract_tasks(lowered)
    skeleton = None
    try:
        skeleton = make_skeleton(lowered, ImportReport.read(imported).inputs)
    except Exception as fault:  # noqa: BLE001 (whatever TVM makes of it, tasks can be tuned)
        stage.say(f"contenders cannot be measured in the model: {last_line(fault)}")
    with whole_directory(stage.places.tasks(stage.model)) as directory:
        write_tasks(tasks, stage.model, stage.fingerprint.target, directory)
        if skeleton is not None:
            skeleton.write(directory)
    stage.say(f"{len(tasks)} tasks")


if __name__ == "__main__":
    main("extract_tasks", run, "model")
