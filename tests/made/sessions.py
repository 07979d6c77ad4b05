"""Sessions whose measurements cost nothing, and what their journals hold."""

from __future__ import annotations

import io
import json
from pathlib import Path

from fewtune.progress.progress import Progress
from fewtune.runtime.tvm import tvm
from fewtune.storage.journal import Journal
from fewtune.task.extract import Task
from fewtune.trial.outcome import Outcome
from fewtune.trial.phases import Phases
from fewtune.tuning.state import Start
from fewtune.tuning.tune import TuneJob, Tuning
from tests import tuned_tiny

BATCH_S = 10.0


class CountingMeasurer:
    """Answers at once that every candidate takes 1 ms; moves a clock by 10 s a batch."""

    def __init__(self) -> None:
        self.pool = tuned_tiny.pool()
        self.phases = Phases()
        self.most_flops_s = float("inf")
        self.now_s = 0.0

    def measure(self, modules: list[tvm.IRModule], *lists: list, **named: list) -> list[Outcome]:
        assert all(len(each) == len(modules) for each in (*lists, *named.values()))
        self.now_s += BATCH_S
        return [Outcome([1e-3])] * len(modules)


def session(path: Path, names: str, **changed: object) -> Tuning:
    """A session on convolutions of the tiny model whose measurements cost nothing."""
    tasks = [tuned_tiny.convolutions()[name] for name in names]
    measurer = CountingMeasurer()
    options = tuned_tiny.OPTIONS.model_copy(update=changed)
    place = Journal(path, {}), Progress(stream=io.StringIO()), tuned_tiny.pool()
    starts = {task.info.name: Start(serves=1 / len(tasks)) for task in tasks}
    job = tuned_tiny.job_of(TuneJob, tasks, path.parent, options, starts=starts)

    class Clocked(Tuning):
        clock = staticmethod(lambda: measurer.now_s)

    made = Clocked(job, *place)
    made.measurer = measurer
    return made


def batches(path: Path) -> list[str]:
    journal = Journal(path, {})
    journal.close()
    rounds = [event for event in journal.events if event["kind"] == "round"]
    return [task for event in rounds for task in event["by_task"]]


def conv(name: str) -> Task:
    return tuned_tiny.convolutions()[name]


def events_of(path: Path) -> list[dict]:
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line.partition(b" ")[2]) for line in lines]
