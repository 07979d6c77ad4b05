"""Which tasks are searched in sharing: heavy ones that are slower than others like them."""

from collections import Counter
from types import SimpleNamespace

import pytest

from fewtune.sharing.job import SharingRules
from fewtune.sharing.search_round import SEARCHED, SearchRound
from fewtune.task.extract import Task
from fewtune.trial.trial import Trial
from fewtune.tuning.run_state import RunState
from fewtune.tuning.task_state import TaskState
from tests.made.tasks import made_task

RULES = SharingRules(
    searched_gain=0.1,
    searched_least=0.03,
    searched_patience=2,
    searched_batch=8,
    searched_trials=16,
)


def searched(
    slow_s: float,
    drawn_s: float,
    calls: int = 1,
    events: tuple[dict, ...] = (),
    faster: float = 1.0,
    operators: tuple[str, str] = ("conv2d", "conv2d"),
    slow: tuple[str, ...] = ("slow",),
) -> dict[str, int]:
    """Trials by task of tasks of equal work; the fast one's calls take 10 ms each."""
    given = [*((made_task(name), operators[0]) for name in slow)]
    given.append((made_task("fast", calls), operators[1]))
    tasks = [
        Task(task.info.model_copy(update={"operator": operator}), task.mod)
        for task, operator in given
    ]
    run = RunState(tasks, [*slow, "fast"])
    for name, state in run.tasks.items():
        default_s, best_s = (0.02, 0.01) if name == "fast" else (slow_s, drawn_s)
        state.default = Trial(f"{name} default", [default_s], None, is_checked=True)
        state.add(Trial(f"{name} drawn", [best_s], None, is_checked=True))
        state.progress.default_s, state.progress.best_s = default_s, [best_s]
        # The journal's batches of the round brought nothing.
        state.progress.best_s += [best_s for event in events if event["task"] == name]
    found = Counter({event["task"]: len(event["trials"]) for event in events})

    def a_batch(states: list[TaskState], room: int, _: object) -> list[SimpleNamespace]:
        """All candidates that there is room for, faster than the last batch by a factor."""
        (state,) = states
        state.progress.best_s.append(state.progress.best_s[-1] * faster)
        found[state.task.info.name] += room
        return [SimpleNamespace(proposals=[None] * room)]

    session = SimpleNamespace(
        state=run,
        journal=SimpleNamespace(events=list(events)),
        searched=a_batch,
        show=lambda *_, **__: None,
    )
    made = SearchRound(session, RULES)
    made.hold(run.tasks.values())
    assert made.trials == found.total()
    return dict(found)


@pytest.mark.parametrize(
    ("slow_s", "drawn_s"),
    [
        pytest.param(0.1, 0.2, id="by its default schedule"),
        pytest.param(0.1, 0.05, id="by a drawn one"),
    ],
)
def test_a_slow_task_is_searched(slow_s, drawn_s):
    # One batch: the second is worth it only if the first was.
    assert searched(slow_s, drawn_s) == {"slow": 8}


def test_it_is_searched_on_while_that_helps():
    assert searched(0.1, 0.05, faster=0.9) == {"slow": 16}
    # After the first batch it is about as fast as the other.
    assert searched(0.1, 0.05, faster=0.2) == {"slow": 8}


@pytest.mark.parametrize(
    ("slow_s", "calls", "operators"),
    [
        pytest.param(0.0105, 1, ("conv2d", "conv2d"), id="it computes about as fast as the other"),
        # The other's calls take twenty times as long in sum.
        pytest.param(0.1, 200, ("conv2d", "conv2d"), id="it takes little of the model's time"),
        pytest.param(0.1, 1, ("depthwise_conv2d", "conv2d"), id="the other is of another kind"),
    ],
)
def test_others_are_not(slow_s, calls, operators):
    assert searched(slow_s, slow_s, calls, operators=operators) == {}


def test_products_of_all_operators_are_alike():
    assert searched(0.1, 0.1, operators=("dense", "conv2d")) == {"slow": 8}


def test_batches_in_a_row_that_save_little_end_the_round():
    slow = ("slow", "slow, too", "as slow")
    assert searched(0.1, 0.05, slow=slow) == {"slow": 8, "slow, too": 8}
    # Batches that help do not.
    assert searched(0.1, 0.05, slow=slow, faster=0.7) == dict.fromkeys(slow, 16)


def test_a_search_that_was_killed_goes_on():
    event = {"kind": "batch", "round": SEARCHED, "task": "slow", "trials": [{}] * 8}
    assert searched(0.1, 0.05, events=(event,)) == {"slow": 8}
