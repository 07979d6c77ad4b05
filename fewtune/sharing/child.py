"""Sharing in the child process."""

from __future__ import annotations

from typing import Any

from fewtune.artifacts import Skeleton
from fewtune.finals.finals import Finals
from fewtune.measure.device import Device
from fewtune.progress.progress import Progress
from fewtune.runtime.target import has_own_device, target_from_json
from fewtune.sharing.job import ShareJob
from fewtune.sharing.session import Sharing
from fewtune.storage.journal import Journal
from fewtune.task.extract import Task, read_tasks
from fewtune.workers.pool import WorkerPool


def share_session(
    job: dict[str, Any],
    tasks: list[Task],
    target_json: str,
    journal: Journal,
    progress: Progress,
    pool: WorkerPool,
    device: Device | None = None,
) -> None:
    """Share the schedules of the job's donors; see `fewtune.sharing.share`."""
    by_name = {task.info.name: task for task in tasks}
    target = target_from_json(target_json)
    order = ShareJob.from_json(job)
    finals = None
    # Finals need a model that runs on this processor.
    able = not has_own_device(target) if device is None else device.can.finals_in_model
    most, directory = order.options.finals, order.model
    if most > 1 and directory is not None and able:
        if (directory / Skeleton.file_name).is_file():
            tasks_of_model, skeleton = read_tasks(directory), Skeleton.read(directory)
            finals = Finals(skeleton, tasks_of_model, target, most, order.rules.finalists)
        else:
            progress.say(f"no finals in the model: {directory} has no {Skeleton.file_name}")
    sharing = Sharing(
        [by_name[name] for name in [*order.takers, *order.tuned]],
        order,
        target,
        journal,
        progress,
        pool,
        finals=finals,
        device=device,
    )
    sharing.run()
