"""Trials that no version checked are run once before any of them counts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fewtune.measure.measurer import Measurer
from fewtune.schedule.defaults.default import default_schedule
from fewtune.trial.trial import Trial, trace_key
from fewtune.tuning.task_scheduler import TaskProgress
from fewtune.tuning.task_state import PriorResult, TaskState
from fewtune.tuning.unchecked import checked
from tests import tuned_tiny


@pytest.fixture
def measurer() -> Iterator[Measurer]:
    yield Measurer(tuned_tiny.pool())


def state_of(*trials: Trial) -> TaskState:
    """A convolution that an earlier session tuned."""
    task = tuned_tiny.convolutions()["b"]
    state = TaskState(task, TaskProgress.of(task.info))
    state.go_on_from(PriorResult(list(trials)))
    return state


def right_key() -> str:
    schedule = default_schedule(tuned_tiny.convolutions()["b"].mod, tuned_tiny.target())
    assert schedule is not None
    return trace_key(schedule.trace)


def judged(measurer: Measurer, state: TaskState) -> dict[str, str]:
    found: dict[str, str] = {}

    def note(noted: TaskState, faults: dict[str, str]) -> None:
        noted.take_faults(faults)
        found.update(faults)

    checked(measurer, tuned_tiny.target(), [state], lambda _: None, note)
    return found


def test_an_old_trial_counts_once_its_outputs_are_right(measurer: Measurer) -> None:
    state = state_of(Trial(right_key(), [1e-3], None, is_checked=None))
    assert state.ranked() == []
    assert judged(measurer, state) == {right_key(): ""}
    assert [trial.key for trial in state.ranked()] == [right_key()]
    assert state.unchecked() == []


def test_a_trace_that_does_not_apply_is_no_schedule(measurer: Measurer) -> None:
    strange = '[[["GetSBlock",[],["no_such_block","main"],["b0"]]],[]]'
    state = state_of(
        Trial(strange, [1e-4], None, is_checked=None),
        Trial(right_key(), [1e-3], None, is_checked=None),
    )
    faults = judged(measurer, state)
    assert faults[right_key()] == ""
    assert "does not apply" in faults[strange]
    assert [trial.key for trial in state.ranked()] == [right_key()]


def test_what_was_checked_is_not_checked_again(measurer: Measurer) -> None:
    state = state_of(Trial(right_key(), [1e-3], None))
    assert judged(measurer, state) == {}
    assert measurer.checking.checks == 0
