"""Candidates measured while the cores are far from each other, beside those measured before."""

from __future__ import annotations

import pytest

from fewtune.machine.core_to_core import HandOver, hand_over, same_state
from fewtune.measure.drift import Yardsticks
from fewtune.runtime.tvm import tvm
from fewtune.timing.calibration import Measured
from fewtune.trial.worker_reply import Built, RequestFailedError
from tests import tuned_tiny

NEAR_S, FAR_S = 9e-6, 31e-6
FIRST, SECOND, THIRD = (Built(worker=0, number=number, build_s=0.0) for number in range(3))


class Machine:
    """Kernels that take longer while its cores are far from each other."""

    def __init__(self) -> None:
        self.hand_over_s: float | None = NEAR_S
        self.near_s = {0: 10.0, 1: 9.0, 2: 8.0}
        self.longer = 1.5
        self.measured: list[tuple[int, float | None]] = []
        self.gone: set[int] = set()
        self.failing: set[int] = set()
        # States that it comes into after so many measurements.
        self.later: dict[int, float] = {}

    def measure(self, built: Built, _specs: object, bar_s: float | None) -> Measured:
        if built.number in self.failing:
            raise RequestFailedError("no such candidate")
        self.measured.append((built.number, bar_s))
        self.hand_over_s = self.later.get(len(self.measured), self.hand_over_s)
        times = self.longer if self.hand_over_s == FAR_S else 1.0
        return Measured([self.near_s[built.number] * times], 0.0, hand_over_s=self.hand_over_s)

    def yardsticks(self) -> Yardsticks:
        return Yardsticks(self.measure, lambda built: built.number not in self.gone)


def took_s(yardsticks: Yardsticks, built: Built, race: str = "task") -> float:
    (time_s,) = yardsticks.outcome(race, built, [], None).run_s or []
    return time_s


def test_in_a_steady_state_nothing_is_measured_twice() -> None:
    machine = Machine()
    yardsticks = machine.yardsticks()
    assert [took_s(yardsticks, each) for each in (FIRST, SECOND, THIRD)] == [10.0, 9.0, 8.0]
    assert [number for number, _ in machine.measured] == [0, 1, 2]


def test_what_is_measured_afar_is_told_by_the_scale_of_before() -> None:
    machine = Machine()
    yardsticks = machine.yardsticks()
    took_s(yardsticks, FIRST)
    machine.hand_over_s = FAR_S
    outcome = yardsticks.outcome("task", SECOND, [], 10.0)
    # It took 13.5, as the first would have 15 instead of its 10.
    assert outcome.run_s == [pytest.approx(9.0)]
    assert outcome.pace == pytest.approx(1.5)
    assert [number for number, _ in machine.measured] == [0, 1, 0]
    # The next one is held to what that took, in this state: nothing is measured again.
    assert took_s(yardsticks, THIRD) == pytest.approx(8.0)
    assert len(machine.measured) == 4
    yardsticks.outcome("task", FIRST, [], 8.0)
    assert machine.measured[-1] == (0, pytest.approx(12.0))
    # And back: the fastest, which was measured afar, tells what they take when near.
    machine.hand_over_s = NEAR_S
    assert took_s(yardsticks, SECOND) == pytest.approx(9.0)
    assert [number for number, _ in machine.measured[-2:]] == [1, 2]


def test_three_states_are_told_apart() -> None:
    machine = Machine()
    yardsticks = machine.yardsticks()
    took_s(yardsticks, FIRST)
    # Both on one core, and then far from each other: each has a factor of its own.
    machine.hand_over_s, machine.near_s = 0.4 * NEAR_S, {0: 20.0, 1: 18.0, 2: 16.0}
    assert took_s(yardsticks, SECOND) == pytest.approx(9.0)
    machine.hand_over_s, machine.near_s = FAR_S, {0: 10.0, 1: 9.0, 2: 8.0}
    assert took_s(yardsticks, THIRD) == pytest.approx(8.0)


def test_a_session_that_begins_afar_keeps_to_that_scale() -> None:
    machine = Machine()
    machine.hand_over_s = FAR_S
    yardsticks = machine.yardsticks()
    assert took_s(yardsticks, FIRST) == 15.0
    machine.hand_over_s = NEAR_S
    assert took_s(yardsticks, SECOND) == pytest.approx(13.5)
    assert took_s(yardsticks, FIRST, "another task") == 10.0


@pytest.mark.parametrize("why", ["gone", "failing"])
def test_without_the_fastest_a_figure_stands_as_it_is(why: str) -> None:
    machine = Machine()
    yardsticks = machine.yardsticks()
    took_s(yardsticks, FIRST)
    machine.hand_over_s = FAR_S
    getattr(machine, why).add(0)
    assert took_s(yardsticks, SECOND) == 13.5


def test_cores_that_move_again_meanwhile_tell_nothing() -> None:
    machine = Machine()
    yardsticks = machine.yardsticks()
    took_s(yardsticks, FIRST)
    machine.later = {2: FAR_S, 3: NEAR_S}
    assert took_s(yardsticks, SECOND) == 13.5


def test_a_factor_that_no_state_explains_is_not_used() -> None:
    machine = Machine()
    machine.longer = 9.0
    yardsticks = machine.yardsticks()
    took_s(yardsticks, FIRST)
    machine.hand_over_s = FAR_S
    assert took_s(yardsticks, SECOND) == 81.0
    # Nor looked for again by the next candidate.
    assert took_s(yardsticks, THIRD) == 72.0
    assert [number for number, _ in machine.measured] == [0, 1, 0, 2]


def test_without_cores_to_hand_over_to_nothing_is_scaled() -> None:
    machine = Machine()
    machine.hand_over_s = None
    yardsticks = machine.yardsticks()
    assert [took_s(yardsticks, each) for each in (FIRST, SECOND)] == [10.0, 9.0]


def test_what_the_cores_take_is_measured() -> None:
    found = hand_over(tuned_tiny.target(), 2)
    assert isinstance(found, HandOver)
    assert 0 < found.now_s() < 1
    assert not same_state(FAR_S, NEAR_S)
    assert same_state(1.25 * NEAR_S, NEAR_S)


def test_one_core_and_a_device_of_its_own_hand_nothing_over() -> None:
    assert hand_over(tuned_tiny.target(), 1) is None
    assert hand_over(tvm.target.Target({"kind": "cuda", "arch": "sm_90"}), 2) is None
