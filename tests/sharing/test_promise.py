"""Which tasks get contenders next: those from which the model is expected to gain most."""

import pytest

from fewtune.sharing.promise import expected, promises
from fewtune.tuning.task_scheduler import TaskProgress
from fewtune.tuning.task_state import TaskState
from tests.made.tasks import made_task


def state(name: str, time_s: float | None = None, *gains: float) -> TaskState:
    """A task of as much work as all others, and what its rounds came to."""
    task = made_task(name)
    found = TaskState(task, TaskProgress.of(task.info), gains=list(gains))
    if time_s is not None:
        found.progress.best_s = [time_s]
    return found


def promised(*states: TaskState, spread: float = 0.1) -> dict[str, float]:
    names = [each.task.info.name for each in states]
    return promises(states, dict.fromkeys(names, spread))


def test_a_known_task_that_is_slow_comes_before_one_that_is_fast():
    # Both are known and do as much; one reaches a fifth of the throughput.
    found = promised(state("slow", 5.0, 0.0), state("fast", 1.0, 0.0))
    assert found["slow"] > 10 * found["fast"] > 0


def test_before_anything_is_measured_share_and_doubt_decide():
    first, second = state("first"), state("second")
    second.task = made_task("second")
    doubts = {"first": 0.1, "second": 0.5}
    assert promises([first, second], doubts) == {"first": 0.05, "second": 0.25}
    # What nobody knows to be better, or worse, promises nothing.
    assert promises([first], {}) == {"first": 0.0}


def test_rounds_without_a_gain_end_it_and_a_gain_goes_on():
    hopes = [expected(0.5, 0.0, [0.0] * rounds) for rounds in range(7)]
    assert hopes == sorted(hopes, reverse=True)
    assert hopes[-1] < 0.002 < hopes[0]
    assert expected(0.5, 0.0, [0.0, 0.3]) == pytest.approx(0.15)
    # Noise is no gain.
    assert expected(0.1, 0.0, [0.005]) == expected(0.1, 0.0, [0.0])
