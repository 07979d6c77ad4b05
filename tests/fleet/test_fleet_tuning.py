"""Who measures what on a fleet: machines that answer at once, are lost, or die of a task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any, cast

import pytest

from fewtune.errors import MachineError
from fewtune.fleet.orders import Answer, Orders
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
        self.steps: list[tuple[str, tuple[str, ...], str]] = []
        self.forgotten: list[str] = []
        self._made = 0
        self._instead = instead or {}

    @property
    def idle(self) -> list[str]:
        return sorted(self.machines.keys() - {machine for machine, _, _ in self.given})

    @property
    def busy(self) -> int:
        return len(self.given)

    def look(self) -> None:
        """No other machine comes."""

    def forget(self, machine: str) -> None:
        self.forgotten.append(machine)

    def give(
        self, machine: str, step: Any, order: dict[str, Any], _whole: Callable[[], dict[str, Any]]
    ) -> None:
        self.given.append((machine, step, order))

    def next_answer(self) -> tuple[str, Any, Answer]:
        machine, step, order = self.given.pop(0)
        number = len(self.steps)
        assert order["of"] == list(step.tasks)
        self.steps.append((machine, step.tasks, step.what))
        answer = self._instead.get(number)
        if answer is not None:
            if answer.lost:
                del self.machines[machine]
            return machine, step, answer
        events: list[dict[str, Any]] = []
        for task in step.tasks:
            if step.what == "default":
                events.append({"kind": "default", "task": task, "trial": trial("default", 2e-3)})
            elif step.what == "batch":
                trials = [trial(f"{self._made + i}", 1e-3) for i in range(step.room)]
                self._made += step.room
                phases = {"run_s": 0.1}
                events.append({"kind": "batch", "task": task, "phases": phases, "trials": trials})
        return machine, step, Answer(events)


def trial(name: str, time_s: float) -> dict[str, Any]:
    return {"trace": [name], "run_s": [time_s]}


def tuning(
    folder: Path, machines: Machines, trials: int = TRIALS, *, is_resumed: bool = False
) -> FleetTuning:
    options = TuneOptions(trials_per_task=trials, batch_size=BATCH, least_gain=0.0)
    job = TuneJob(list(TASKS), options)
    journal = Journal(folder / "journal.jsonl", {"of": "a test"})
    progress = Progress(stream=(folder / "said").open("a"))
    tasks = [made_task(name) for name in TASKS]
    orders = cast(Orders, machines)
    return FleetTuning(tasks, job, journal, progress, orders, "key", is_resumed)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_budget_is_spent_exactly_and_tasks_keep_to_their_machine(
    tmp_path: Path, count: int
) -> None:
    machines = Machines([f"machine{i}" for i in range(count)])
    session = tuning(tmp_path, machines)
    assert session.run() == "trials"
    assert session.state.trials == TRIALS * len(TASKS)
    homes = {task: {m for m, tasks, _ in machines.steps if task in tasks} for task in TASKS}
    assert all(len(each) == 1 for each in homes.values())
    assert len(set.union(*homes.values())) == min(count, len(TASKS))
    # Each has its default and its duel asked for once, several an order.
    for wanted in ("default", "duel"):
        asked = [tasks for _, tasks, what in machines.steps if what == wanted]
        assert Counter(chain(*asked)) == dict.fromkeys(TASKS, 1)
        assert len(asked) == min(count, len(TASKS))
    again = Machines(["machine0"])
    assert tuning(tmp_path, again).run() == "trials"
    assert not again.steps


def test_a_lost_machines_task_goes_on_elsewhere(tmp_path: Path) -> None:
    # The first batch that the second machine is asked for is lost with it.
    machines = Machines(["one", "two"], {3: Answer([], lost=True)})
    session = tuning(tmp_path, machines)
    assert session.run() == "trials"
    assert session.state.trials == TRIALS * len(TASKS)
    lost = machines.steps[3]
    assert lost[2] == "batch"
    assert lost[0] not in {machine for machine, _, _ in machines.steps[4:]}
    assert lost[1] in {tasks for _, tasks, _ in machines.steps[4:]}
    # The machine that goes on gets what was measured there.
    assert set(machines.forgotten) == {"one", "two"} - {lost[0]}
    assert not any(state.crashed for state in session.state.tasks.values())


def test_a_task_that_tvm_dies_of_is_left_out_and_what_came_before_is_kept(tmp_path: Path) -> None:
    begun = [{"kind": "start", "task": task} for task in TASKS[:2]]
    known = {"kind": "default", "task": TASKS[0], "trial": trial("default", 2e-3)}
    machines = Machines(["one"], {0: Answer([begun[0], known, begun[1]], died="SIGSEGV")})
    session = tuning(tmp_path, machines)
    session.run()
    assert [n for n, state in session.state.tasks.items() if state.crashed] == [TASKS[1]]
    assert machines.steps[0][1] == TASKS
    assert machines.steps[1] == ("one", TASKS[2:], "default")
    assert TASKS[1] not in chain(*(tasks for _, tasks, _ in machines.steps[1:]))


def test_what_was_measured_is_journalled_before_a_fault_ends_the_run(tmp_path: Path) -> None:
    known = {"kind": "default", "task": TASKS[0], "trial": trial("default", 2e-3)}
    machines = Machines(["one"], {0: Answer([known], fault=MachineError("no room"))})
    with pytest.raises(MachineError, match="no room"):
        tuning(tmp_path, machines).run()
    again = tuning(tmp_path, Machines(["one"]))
    assert again.state.tasks[TASKS[0]].default is not None


def test_a_resumed_run_first_fetches_what_machines_have_and_keeps_tasks_there(
    tmp_path: Path,
) -> None:
    # The client is killed when it has taken what two machines measured of three tasks' defaults.
    killed = Machines(["one", "two"], {2: Answer([], fault=MachineError("killed"))})
    with pytest.raises(MachineError):
        tuning(tmp_path, killed).run()
    homes = {task: machine for machine, tasks, _ in killed.steps[:2] for task in tasks}
    trials = [trial("unfetched", 1e-3)]
    unfetched = {"kind": "batch", "task": TASKS[0], "phases": {"run_s": 0.1}, "trials": trials}
    at = sorted(homes.values()).index(homes[TASKS[0]]) and 1
    machines = Machines(["one", "two"], {at: Answer([unfetched])})
    session = tuning(tmp_path, machines, is_resumed=True)
    session.run()
    assert machines.steps[:2] == [("one", (), "fetch"), ("two", (), "fetch")]
    for machine, tasks, _ in machines.steps[2:]:
        assert {homes[task] for task in tasks} == {machine}
    assert session.state.trials == TRIALS * len(TASKS)
    assert session.state.tasks[TASKS[0]].trials[0].key == '["unfetched"]'


def test_a_larger_budget_goes_on_where_the_journal_ends(tmp_path: Path) -> None:
    tuning(tmp_path, Machines(["one"])).run()
    machines = Machines(["one"])
    session = tuning(tmp_path, machines, trials=2 * TRIALS)
    assert session.run() == "trials"
    assert session.state.trials == 2 * TRIALS * len(TASKS)
    assert {what for _, _, what in machines.steps} == {"batch", "duel"}
