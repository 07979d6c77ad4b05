"""Rounds that other work disturbed: measured again, and told where they stay."""

import pytest

from fewtune.artifacts import LatencyStats
from fewtune.benchmark import interleave as module
from fewtune.benchmark.interleave import Quiet, disturbance, interleave
from tests.made import results as made


class Others:
    """Takes so many cores, window by window, and none afterwards."""

    def __init__(self, *cores: float) -> None:
        self.cores = list(cores)

    def taken_cores(self) -> float:
        return self.cores.pop(0) if self.cores else 0.0


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(module.time, "sleep", lambda _: None)


def measured(quiet: Quiet, rounds: int) -> list[float]:
    """What each round measures on a clock that counts the calls."""
    calls = iter(range(10_000))
    return interleave({"a": lambda: None}, rounds, lambda: float(next(calls)), quiet=quiet)["a"]


def test_a_disturbed_round_is_measured_again_once_it_is_quiet():
    # Before the first round, the round itself, and two windows until the machine is quiet.
    quiet = Quiet(2, wait_s=30, meter=Others(0, 1.5, 1.5, 0))
    assert len(measured(quiet, 4)) == 4
    assert (quiet.repeated, quiet.rounds, quiet.taken_cores) == (1, 4, [])
    assert quiet.waited_s >= 1.0
    assert disturbance([quiet], made.latency(2.0)) == ""
    assert "(rounds measured again: 1)" in quiet.remark


@pytest.mark.parametrize(("wait_s", "repeated"), [(0, 0), (3, 1)])
def test_a_machine_that_stays_busy_is_told_beside_the_figure(wait_s, repeated):
    quiet = Quiet(2, wait_s, Others(*[1.5] * 100))
    measured(quiet, 4)
    assert (quiet.repeated, quiet.rounds, quiet.taken_cores) == (repeated, 4, [1.5] * 4)
    told = disturbance([quiet], made.latency(2.0), kernels_ms=1.4)
    assert told.startswith("other processes and the host took 1.5 of ")
    assert told.endswith(
        "cores in 4 of 4 rounds; the fastest round took 1.60 ms, the kernels 1.40 ms in sum"
    )


def test_a_few_disturbed_rounds_do_not_move_a_median():
    quiet = Quiet(2, 0, Others(0, 0, 0, 1.5, 0, 0, 0, 0, 0, 0, 0, 0))
    measured(quiet, 5)
    assert quiet.taken_cores == [1.5]
    assert disturbance([quiet], made.latency(2.0)) == ""


def test_a_wide_spread_is_a_disturbance_whoever_caused_it():
    wide = LatencyStats(median_ms=21.1, p10_ms=15.8, p90_ms=40.0, min_ms=2.6, rounds=30)
    assert disturbance([], wide) == (
        "rounds differ by 57 % from the median; the fastest round took 2.60 ms"
    )
