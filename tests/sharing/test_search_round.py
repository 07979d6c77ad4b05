"""Which tasks are searched in sharing: heavy ones that compute slowly by their default schedule."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fewtune.sharing.rules import SharingRules
from fewtune.sharing.search_round import SEARCHED, SearchRound
from fewtune.trial.trial import Trial
from fewtune.tuning.run_state import RunState
from fewtune.tuning.task_state import TaskState
from tests.made.tasks import made_task

RULES = SharingRules(searched_part=0.1, searched_rate=0.5, searched_trials=32)


class Round(SearchRound):
    """A round whose batches give 16 candidates, of which nothing is measured."""

    def _search(self, state: TaskState, room: int) -> int:
        self._had[state.task.info.name] += min(room, 16)
        return 16


def searched(
    slow_s: float, drawn_s: float, calls: int = 1, events: tuple[dict, ...] = ()
) -> dict[str, int]:
    """Trials by task of two equal tasks, one of which keeps its default schedule."""
    run = RunState([made_task("slow"), made_task("fast", calls)], ["slow", "fast"])
    for name, default_s, best_s in (("slow", slow_s, drawn_s), ("fast", 0.02, 0.01)):
        state = run.tasks[name]
        state.default = Trial(f"{name} default", [default_s], None, is_checked=True)
        state.add(Trial(f"{name} drawn", [best_s], None, is_checked=True))
        state.progress.default_s, state.progress.best_s = default_s, [best_s]
    session = SimpleNamespace(state=run, journal=SimpleNamespace(events=list(events)))
    made = Round(session, RULES)
    made.hold(run.tasks.values())
    return {name: count for name, count in made._had.items() if count}


def test_a_slow_default_is_searched() -> None:
    assert searched(slow_s=0.1, drawn_s=0.2) == {"slow": 32}


@pytest.mark.parametrize(
    ("slow_s", "drawn_s"),
    [
        pytest.param(0.1, 0.05, id="a drawn schedule has beaten it"),
        pytest.param(0.012, 0.02, id="it computes about as fast as the other"),
    ],
)
def test_others_are_not(slow_s: float, drawn_s: float) -> None:
    assert searched(slow_s, drawn_s) == {}


def test_a_task_that_takes_little_is_not() -> None:
    # The other's calls take twenty times as long in sum.
    assert searched(slow_s=0.1, drawn_s=0.2, calls=200) == {}


def test_a_search_that_was_killed_goes_on() -> None:
    event = {"kind": "batch", "round": SEARCHED, "task": "slow", "trials": [{}] * 20}
    assert searched(0.1, 0.05, events=(event,)) == {"slow": 32}
