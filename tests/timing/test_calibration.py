"""When a measurement is repeated, by scripted times of the calibration kernel."""

from __future__ import annotations

from collections.abc import Iterator

from fewtune.timing.calibration import Attempt, Calibration, Measured

FLOOR_S, SLOW_S = 1e-4, 2e-4
FLOPS = 5e6


class Machine:
    """A clock that stands still but for what attempts take, and a kernel of scripted pace.

    Parameters
    ----------
    paces_s : float
        Seconds of the calibration kernel's calls after those it is made with.
    attempt_s : float
        Seconds that one attempt takes.
    """

    def __init__(self, *paces_s: float, attempt_s: float = 0.01) -> None:
        self.now_s = 0.0
        self.attempt_s = attempt_s
        self.paces_s: Iterator[float] = iter(())
        self.calibration = Calibration(
            lambda: next(self.paces_s, FLOOR_S), FLOPS, lambda: self.now_s
        )
        self.paces_s = iter(paces_s)

    def measure(self, *runs_s: float, dropped: bool = False) -> Measured:
        runs = iter(runs_s)

        def attempt() -> Attempt:
            self.now_s += self.attempt_s
            return Attempt([next(runs)], dropped)

        return self.calibration.measure(attempt)


def test_a_quiet_machine_measures_once() -> None:
    measured = Machine(FLOOR_S, 1.2 * FLOOR_S).measure(3.0)
    assert measured == ([3.0], 0, FLOPS / FLOOR_S)


def test_the_fastest_calibration_so_far_tells_what_the_machine_can_do() -> None:
    machine = Machine(FLOOR_S, 0.9 * FLOOR_S, FLOOR_S, FLOOR_S)
    for _ in range(2):
        assert machine.measure(3.0).most_flops_s == FLOPS / (0.9 * FLOOR_S)


def test_a_measurement_beside_a_slow_kernel_is_repeated() -> None:
    measured = Machine(FLOOR_S, SLOW_S, FLOOR_S, FLOOR_S).measure(3.0, 2.0, 1.0)
    # The second attempt began slow, so there is a third.
    assert (measured.run_s, measured.repeats) == ([1.0], 2)


def test_slow_before_counts_as_slow_after_does() -> None:
    assert Machine(SLOW_S, FLOOR_S, FLOOR_S).measure(3.0, 2.0).repeats == 1


def test_the_fastest_attempt_is_kept() -> None:
    measured = Machine(SLOW_S, FLOOR_S, FLOOR_S).measure(2.0, 3.0)
    assert (measured.run_s, measured.repeats) == ([2.0], 1)


def test_there_are_no_more_than_two_repeats() -> None:
    measured = Machine(*[SLOW_S] * 9).measure(3.0, 2.0, 4.0)
    assert (measured.run_s, measured.repeats) == ([2.0], 2)


def test_a_candidate_dropped_at_its_first_run_is_not_repeated() -> None:
    assert Machine(*[SLOW_S] * 9).measure(3.0, dropped=True).repeats == 0


def test_repeats_take_a_fifth_of_a_second_at_most() -> None:
    assert Machine(*[SLOW_S] * 9, attempt_s=0.3).measure(3.0).repeats == 0
    assert Machine(*[SLOW_S] * 9, attempt_s=0.15).measure(3.0, 2.0).repeats == 1


def test_a_moment_of_speed_does_not_make_all_else_slow() -> None:
    machine = Machine(0.85 * FLOOR_S, FLOOR_S, 1.2 * FLOOR_S, FLOOR_S)
    assert [machine.measure(3.0).repeats for _ in range(2)] == [0, 0]
    assert machine.calibration.floor_s == 0.85 * FLOOR_S
    assert machine.calibration.good_s == FLOOR_S


def test_times_that_were_seen_often_enough_are_good_ones() -> None:
    machine = Machine(*[0.85 * FLOOR_S] * 4, FLOOR_S, 1.2 * FLOOR_S, FLOOR_S)
    for _ in range(2):
        assert machine.measure(3.0).repeats == 0
    assert machine.calibration.good_s == 0.85 * FLOOR_S
    assert machine.measure(3.0, 2.0, 1.0).repeats == 2


def test_a_host_that_is_slow_nearly_always_is_not_taken_for_quick() -> None:
    machine = Machine(*[SLOW_S] * 200)
    for _ in range(20):
        machine.measure(3.0, 2.0, 1.0)
    assert machine.calibration.good_s == 1.2 * FLOOR_S
    assert machine.measure(3.0, 2.0, 1.0).repeats == 2
