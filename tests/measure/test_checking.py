"""Candidates that compute something else, through a real worker: they never win."""

import re

import pytest

from fewtune.measure.measurer import Batch, Measurer, is_check_due, module_specs
from fewtune.runtime.tvm import tvm
from fewtune.schedule.defaults import default_schedule
from fewtune.schedule_check.check import ScheduleCheck
from fewtune.trial.outcome import WRONG_OUTPUT, Outcome
from fewtune.trial.trial import Trial
from tests import tuned_tiny


@pytest.fixture(scope="module")
def task():
    return tuned_tiny.convolutions()["b"].mod


@pytest.fixture(scope="module")
def right(task):
    schedule = default_schedule(task, tuned_tiny.target())
    assert schedule is not None
    return schedule.mod


@pytest.fixture(scope="module")
def wanted(task):
    return ScheduleCheck("b", tvm.ir.save_json(task))


@pytest.fixture
def measurer():
    yield Measurer(tuned_tiny.pool())


def altered(module: tvm.IRModule, pattern: str, by: str) -> tvm.IRModule:
    """A scheduled module with something else in its last line that fits."""
    lines = module.script().splitlines()
    place = max(p for p, line in enumerate(lines) if re.search(pattern, line))
    lines[place] = re.sub(pattern, by, lines[place], count=1)
    return tvm.script.from_source("\n".join(lines))


FAULTS = {
    # The rectifier at the end takes what is above one.
    "another constant": lambda m: altered(m, r"T\.float32\(0\.0\)\)$", "T.float32(1.0))"),
    "a sum with another sign": lambda m: altered(m, r" \+ (\w+)\[(.*)\] \* ", r" - \1[\2] * "),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_candidate_never_wins(fault, right, wanted, measurer):
    wrong = FAULTS[fault](right)
    specs = module_specs(tuned_tiny.convolutions()["b"].mod)
    outcomes = measurer.measure([wrong, right], [specs] * 2, [None] * 2, ["race"] * 2, [wanted] * 2)
    assert [outcome.cause for outcome in outcomes] == [WRONG_OUTPUT, None]
    assert "elements differ" in outcomes[0].message
    assert outcomes[1].is_checked
    assert measurer.phases.check_s > 0


def test_a_candidate_that_cannot_win_is_not_checked():
    assert not is_check_due(0.0, 3.0, 1.0)
    assert is_check_due(0.0, 1.2, 1.0)
    # Where it is dearer still, only what beats the fastest is.
    assert not is_check_due(1.0, 1.2, 1.0)
    assert is_check_due(1.0, 0.9, 1.0)
    assert is_check_due(0.0, 3.0, None)


def test_a_verdict_outlives_the_journal():
    passed = Trial("[[],[]]", [1.0], None)
    assert Trial.from_json(passed.as_json()) == passed
    assert passed.as_json()["checked"] is True
    wrong = Trial("[[],[]]", None, WRONG_OUTPUT, fault="3 of 4 elements differ")
    assert Trial.from_json(wrong.as_json()) == wrong
    # Earlier versions compared nothing.
    assert not Trial.from_json({"trace": [[], []], "run_s": [1.0]}).is_checked


def test_a_failure_is_not_beaten():
    batch = Batch([[]] * 3, [None, None, 0.5], ["a", "a", "b"])
    # They may end in any order, as on boards.
    batch.end(1, Outcome([1.0]))
    batch.end(0, Outcome(None, "wrong_output"))
    batch.end(2, Outcome([2.0]))
    outcomes = batch.settle()
    assert [outcome.cause for outcome in outcomes] == ["wrong_output", None, None]
    # Another race does not lower it.
    assert (batch.bar_s(0), batch.bar_s(2)) == (1.0, 0.5)
