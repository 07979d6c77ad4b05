"""Stage select_tasks: which tasks are tuned, and which take their schedules from those."""

from __future__ import annotations

from fewtune.files import whole_directory
from fewtune.select.select import select_tasks, write_similarity
from fewtune.task.extract import read_tasks
from stages.command import main, say
from stages.params import load_section
from stages.places import Places


def run(model: str, strategy: str) -> None:
    """Compare the tasks' tuning spaces and choose a representative of each cluster."""
    options = load_section("select_tasks", strategy)
    places = Places()
    tasks = read_tasks(places.tasks(model))
    selection, matrix = select_tasks(tasks, options, model=model, strategy=strategy)
    with whole_directory(places.selected(model, strategy)) as directory:
        selection.write(directory)
        write_similarity(selection, matrix, directory)
    say(
        f"{model} ({strategy}): {len(selection.representatives)} to tune, "
        f"{len(selection.dependents)} take schedules from them, "
        f"{len(selection.set_aside)} set aside"
    )


if __name__ == "__main__":
    main("select_tasks", run)
