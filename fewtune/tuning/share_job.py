"""The share stage's job, as it is sent to a child process, and what that makes of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from fewtune.bank.bank import Bank
from fewtune.machine import target_from_json
from fewtune.schedule.search_space import SearchSpace
from fewtune.schedule.transfer import Donation
from fewtune.task.extract import Task
from fewtune.tuning.allocate import TaskProgress
from fewtune.tuning.journal import Journal
from fewtune.tuning.known import teach
from fewtune.tuning.log import Trial
from fewtune.tuning.options import ShareOptions
from fewtune.tuning.pool import WorkerPool
from fewtune.tuning.progress import Progress
from fewtune.tuning.sharing import Known, Sharing, Taker
from fewtune.tuning.strategies import Knowledge
from fewtune.tvm_runtime import tvm


def share_session(
    job: dict[str, Any],
    tasks: list[Task],
    target_json: str,
    journal: Journal,
    progress: Progress,
    pool: WorkerPool,
) -> None:
    """Child process: share what the job's donors have to give; see `fewtune.share`."""
    by_name = {task.info.name: task for task in tasks}
    target = target_from_json(target_json)
    takers = {name: Taker(*pair) for name, pair in job["takers"].items()}
    peers = []
    for name, reached_ms in job["reached_ms"].items():
        peer = TaskProgress.of(by_name[name].info)
        peer.best_s = [] if reached_ms is None else [reached_ms / 1e3]
        peers.append(peer)
    sharing = Sharing(
        [by_name[name] for name in takers],
        takers,
        {name: [Donation.from_json(d) for d in each] for name, each in job["donations"].items()},
        {name: Known(*pair) for name, pair in job["known"].items()},
        partial(_teach, job, by_name, target),
        peers,
        ShareOptions.model_validate(job["options"]),
        target,
        journal,
        progress,
        pool,
        cold_weights=job["cold_weights"],
        covered=job["covered"],
    )
    sharing.run()


def _teach(
    job: dict[str, Any],
    by_name: dict[str, Task],
    target: tvm.target.Target,
    knowledge: Knowledge,
) -> None:
    """Let cost model and predictor learn from the donors' trials, and from the bank's."""
    taught = [
        (SearchSpace(by_name[n].mod, target), [Trial.from_json(e) for e in entries])
        for n, entries in job["taught"].items()
    ]
    teach(knowledge, taught)
    if job["bank"] is not None:
        Bank.read(Path(job["bank"])).teach(knowledge.cost_model)
