"""Stage extract_tasks: the model's distinct kernels as MetaSchedule tasks."""

from __future__ import annotations

from fewtune.artifacts import Fingerprint, ImportReport
from fewtune.errors import last_line
from fewtune.model.call_graph import make_skeleton
from fewtune.model.import_model import read_lowered
from fewtune.stages.command import main, say
from fewtune.stages.params import load_section
from fewtune.stages.paths import Places
from fewtune.task.extract import extract_tasks, tasks_markdown, write_tasks
from fewtune.util.files import whole_directory, write_text


def run(model: str) -> None:
    """List the model's tasks with their weight, shapes, FLOPs and bytes, and its calls of them."""
    load_section("extract_tasks")
    places = Places()
    fingerprint = Fingerprint.read(places.fingerprint)
    lowered = read_lowered(places.imported(model))
    tasks = extract_tasks(lowered)
    skeleton = None
    try:
        skeleton = make_skeleton(lowered, ImportReport.read(places.imported(model)).inputs)
    except Exception as fault:  # noqa: BLE001 (whatever TVM makes of it, tasks can be tuned)
        say(f"{model}: contenders cannot be measured in the model: {last_line(fault)}")
    with whole_directory(places.tasks(model)) as directory:
        table = write_tasks(tasks, model, fingerprint.target, directory)
        if skeleton is not None:
            skeleton.write(directory)
        write_text(directory / "tasks.md", tasks_markdown(table))
    say(f"{model}: {len(tasks)} tasks")


if __name__ == "__main__":
    main("extract_tasks", run)
