"""Which tasks get contenders next: those from which the model is expected to gain most."""

import pytest

from fewtune.tuning.promise import expected, promises
from fewtune.tuning.state import Start, TaskState
from tests.made.tasks import made_task, trial


def state(
    name: str, time_s: float | None = None, *gains: float, serves: float = 0.5, spread: float = 0.1
) -> TaskState:
    """A task of as much work as all others, and what its rounds came to."""
    measured = [] if time_s is None else [trial(name, time_s)]
    start = Start(spread=spread, serves=serves, trials=measured)
    return TaskState(made_task(name), start, gains=list(gains))


def test_a_known_task_that_is_slow_comes_before_one_that_is_fast():
    # Both are known and do as much; one reaches a fifth of the throughput.
    found = promises([state("slow", 5.0, 0.0), state("fast", 1.0, 0.0)])
    assert found["slow"] > 10 * found["fast"] > 0


def test_before_anything_is_measured_share_and_doubt_decide():
    found = promises([state("first"), state("second", spread=0.5)])
    assert found == {"first": 0.05, "second": 0.25}
    # What nobody knows to be better, or worse, promises nothing.
    assert promises([state("first", spread=0.0)]) == {"first": 0.0}


def test_a_representative_counts_for_its_cluster():
    # The first takes as long as the second, and serves three times as much of the model.
    found = promises([state("first", 1.0, 0.0, serves=0.6), state("second", 1.0, 0.0, serves=0.2)])
    assert found["first"] == pytest.approx(3 * found["second"])
    # Seconds are shared among what was measured; the rest of the model is estimated.
    assert sum(found.values()) == pytest.approx(0.8 * expected(0.1, 0.0, [0.0]))


def test_rounds_without_a_gain_end_it_and_a_gain_goes_on():
    hopes = [expected(0.5, 0.0, [0.0] * rounds) for rounds in range(7)]
    assert hopes == sorted(hopes, reverse=True)
    assert hopes[-1] < 0.002 < hopes[0]
    assert expected(0.5, 0.0, [0.0, 0.3]) == pytest.approx(0.15)
    # Noise is no gain.
    assert expected(0.1, 0.0, [0.005]) == expected(0.1, 0.0, [0.0])
