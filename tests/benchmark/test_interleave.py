"""Measuring in turns, on a clock that only the variants move."""

from collections.abc import Callable

import pytest

from fewtune.benchmark import interleave as module
from fewtune.benchmark.interleave import interleave, ratio_stats


class FakeClock:
    """Stands still unless a variant runs."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.ran: list[str] = []

    def __call__(self) -> float:
        return self.now_s

    def variant(self, name: str, call_s: float) -> Callable[[], None]:
        def run() -> None:
            self.ran.append(name)
            self.now_s += call_s

        return run

    def turns(self) -> list[str]:
        """The order of the variants, calls in a row as one."""
        return [n for n, before in zip(self.ran, [None, *self.ran], strict=False) if n != before]


@pytest.fixture(autouse=True)
def no_settling(monkeypatch):
    monkeypatch.setattr(module.time, "sleep", lambda _: None)


def test_the_order_turns_from_round_to_round():
    clock = FakeClock()
    variants = {name: clock.variant(name, 0.1) for name in "abc"}
    interleave(variants, 4, clock)
    assert "".join(clock.turns()) == "abc" + "abc" + "bca" + "cab" + "abc"


@pytest.mark.parametrize(("call_s", "samples", "calls"), [(0.4, 6, 14), (0.6, 1, 1)])
def test_what_is_there_for_scale_is_measured_less(call_s, samples, calls):
    clock = FakeClock()
    variants = {"slow": clock.variant("slow", call_s), "fast": clock.variant("fast", 0.1)}
    found = interleave(variants, 8, clock, frozenset({"slow"}))
    assert found["slow"] == pytest.approx([call_s] * samples)
    assert found["fast"] == pytest.approx([0.1] * 8)
    assert clock.ran.count("slow") == calls


def test_a_sample_is_the_median_of_its_round():
    clock = FakeClock()
    # Two calls to size it (10 ms), ten to warm up, then the measured five.
    calls_s = iter([0.01, 0.01, *[9.0] * 10, 0.01, 0.03, 0.02, 0.01, 0.03])

    def run() -> None:
        clock.now_s += next(calls_s)

    assert interleave({"a": run}, 1, clock) == {"a": pytest.approx([0.02])}


def test_ratios_are_taken_round_by_round():
    # 4/2, 9/3, 1/1: the median of the ratios is 2, the ratio of the medians would be 4/2.
    stats = ratio_stats([4.0, 9.0, 1.0], [2.0, 3.0, 1.0])
    assert stats.median == pytest.approx(2.0)
    assert stats.p10 == pytest.approx(1.2)
    assert stats.p90 == pytest.approx(2.8)


def test_variants_that_share_their_threads_take_short_turns():
    clock = FakeClock()
    calls_s = {"a": 0.03, "b": 0.03, "other": 0.1}
    variants = {name: clock.variant(name, call_s) for name, call_s in calls_s.items()}
    found = interleave(variants, 2, clock, together=frozenset("ab"))
    assert found == {name: pytest.approx([call_s] * 2) for name, call_s in calls_s.items()}
    # Sized; then each round the other one, three calls to warm up the threads, and four turns of
    # 120 ms: a call that brings the weights back, and one that is measured.
    ran = "".join(name[0] for name in clock.ran)
    assert ran == "aabboo" + "oo" + "aaa" + "aabbbbaa" * 2 + "bbb" + "bbaaaabb" * 2 + "oo"


def test_rounds_end_when_every_median_is_known():
    clock = FakeClock()
    steady = {"a": clock.variant("a", 0.004), "b": clock.variant("b", 0.25)}
    samples = interleave(steady, 30, clock, known_within=0.01)
    assert {name: len(taken) for name, taken in samples.items()} == {"a": 6, "b": 6}
