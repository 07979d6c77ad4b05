"""Sharing in the child process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fewtune.artifacts import Skeleton
from fewtune.bank.bank import Bank
from fewtune.finals.finals import Finals
from fewtune.measure.device import Device
from fewtune.progress.progress import Progress
from fewtune.runtime.target import has_own_device, target_from_json
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.search import Knowledge
from fewtune.search.warm_start import teach
from fewtune.sharing.job import ShareJob
from fewtune.sharing.session import Sharing
from fewtune.storage.journal import Journal
from fewtune.task.extract import Task, read_tasks
from fewtune.trial.trial import Trial
from fewtune.tuning.task_state import PriorResult
from fewtune.workers.pool import WorkerPool

# Cost models learn from so many trials of a donor: half its best, half of the rest.
_TAUGHT = 48


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
        partial(_teach, order.bank, order.tuned),
        target,
        journal,
        progress,
        pool,
        finals=finals,
        device=device,
    )
    sharing.run()


def _teach(
    bank_directory: Path | None,
    tuned: dict[str, PriorResult],
    knowledge: Knowledge,
    space_of: Callable[[str], SearchSpace | None],
) -> None:
    """Let cost model and predictor learn from the donors' trials, and from the bank's."""
    spaces = ((space_of(name), _spread(each.trials)) for name, each in tuned.items())
    # One at a time: if TVM crashes, the donor begun last is left out.
    teach(knowledge, ((space, trials) for space, trials in spaces if space is not None))
    if bank_directory is not None:
        Bank.read(bank_directory).teach(knowledge.cost_model)


def _spread(trials: list[Trial]) -> list[Trial]:
    """A sample of trials, given fastest first: half the fastest, half spread over the rest."""
    if len(trials) <= _TAUGHT:
        return trials
    best, rest = trials[: _TAUGHT // 2], trials[_TAUGHT // 2 :]
    count = _TAUGHT - len(best)
    return best + [rest[place * len(rest) // count] for place in range(count)]
