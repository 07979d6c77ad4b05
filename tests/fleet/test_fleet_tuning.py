"""Who measures what on a fleet: machines that answer at once, are lost, or die of a task."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fewtune.fleet.orders import Answer
from fewtune.fleet.tuning import FleetTuning
from fewtune.options import TuneOptions
from fewtune.progress.progress import Progress
from fewtune.storage.journal import Journal
from fewtune.tuning.job import TuneJob
from tests.made.tasks import made_task

TASKS = ("first", "second", "third")
TRIALS, BATCH = 6, 3


class Machines:
    """Orders that are answered in the order given; the answers of some steps are another kind."""

    def __init__(self, names: list[str], instead: dict[int, Answer] | None = None) -> None:
        self.machines = dict.fromkeys(names)
        self.given: list[tuple[str, Any, dict[str, Any]]] = []
        self.steps: list[tuple[str, str, str]] = []
        self._instead = instead or {}

    @property
    def idle(self) -> list[str]:
        return sorted(self.machines.keys() - {machine for machine, _, _ in self.given})

    @property
    def busy(self) -> int:
        return len(self.given)

    def look(self) -> None:
        """No other machine comes."""

    def give(self, machine: str, step: Any, order: dict[str, Any]) -> None:
        self.given.append((machine, step, order))

    def next_answer(self) -> tuple[str, Any, Answer]:
        machine, step, order = self.given.pop(0)
        number = len(self.steps)
        self.steps.append((machine, step.task, step.what))
        answer = self._instead.get(number)
        if answer is not None:
            if answer.lost:
                del self.machines[machine]
            return machine, step, answer
        known = sum(len(event.get("trials", [])) for event in order["events"])
        events: list[dict[str, Any]] = []
        if step.what == "default":
            events = [{"kind": "default", "task": step.task, "trial": trial("default", 2e-3)}]
        elif step.what == "batch":
            trials = [trial(f"{known + i}", 1e-3) for i in range(step.room)]
            events = [
                {"kind": "batch", "task": step.task, "phases": {"run_s": 0.1}, "trials": trials}
            ]
        return machine, step, Answer(events)


def trial(name: str, time_s: float) -> dict[str, Any]:
    return {"trace": [name], "run_s": [time_s]}


def tuning(folder: Path, machines: Machines, trials: int = TRIALS) -> FleetTuning:
    options = TuneOptions(trials_per_task=trials, batch_size=BATCH, least_gain=0.0)
    job = TuneJob(list(TASKS), options)
    journal = Journal(folder / "journal.jsonl", {"of": "a test"})
    progress = Progress(stream=(folder / "said").open("a"))
    tasks = [made_task(name) for name in TASKS]
    return FleetTuning(tasks, job, journal, progress, machines, "key")  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_budget_is_spent_exactly_and_tasks_keep_to_their_machine(
    tmp_path: Path, count: int
) -> None:
    machines = Machines([f"machine{i}" for i in range(count)])
    session = tuning(tmp_path, machines)
    assert session.run() == "trials"
    assert session.state.trials == TRIALS * len(TASKS)
    homes = {task: {m for m, t, _ in machines.steps if t == task} for task in TASKS}
    assert all(len(each) == 1 for each in homes.values())
    assert len(set.union(*homes.values())) == min(count, len(TASKS))
    # Each has its duel asked for once; a resumed run asks nothing.
    assert Counter(what for _, _, what in machines.steps)["duel"] == len(TASKS)
    again = Machines(["machine0"])
    assert tuning(tmp_path, again).run() == "trials"
    assert not again.steps


def test_a_lost_machines_task_goes_on_elsewhere(tmp_path: Path) -> None:
    # The first batch that the second machine is asked for is lost with it.
    machines = Machines(["one", "two"], {4: Answer([], lost=True)})
    session = tuning(tmp_path, machines)
    assert session.run() == "trials"
    assert session.state.trials == TRIALS * len(TASKS)
    lost = machines.steps[4]
    assert lost[0] not in {machine for machine, _, _ in machines.steps[5:]}
    assert lost[1] in {task for _, task, _ in machines.steps[5:]}
    assert not any(state.crashed for state in session.state.tasks.values())


def test_a_task_that_tvm_dies_of_is_left_out(tmp_path: Path) -> None:
    machines = Machines(["one"], {0: Answer([], died="SIGSEGV")})
    session = tuning(tmp_path, machines)
    session.run()
    crashed = [name for name, state in session.state.tasks.items() if state.crashed]
    assert len(crashed) == 1
    assert machines.steps[0][1] == crashed[0]
    assert crashed[0] not in {task for _, task, _ in machines.steps[1:]}


def test_a_larger_budget_goes_on_where_the_journal_ends(tmp_path: Path) -> None:
    tuning(tmp_path, Machines(["one"])).run()
    machines = Machines(["one"])
    session = tuning(tmp_path, machines, trials=2 * TRIALS)
    assert session.run() == "trials"
    assert session.state.trials == 2 * TRIALS * len(TASKS)
    assert {what for _, _, what in machines.steps} == {"batch", "duel"}
