"""Tasks that were set aside are measured by their default schedules, if the model calls them."""

from __future__ import annotations

import pytest

from fewtune.benchmark.default_kernels import DefaultKernels
from tests import tuned_tiny

pytestmark = pytest.mark.slow


def made(set_aside: list[str], in_place: dict[str, int]) -> DefaultKernels:
    return DefaultKernels(
        tuned_tiny.tasks(),
        tuned_tiny.selection().model_copy(update={"set_aside": set_aside}),
        in_place,
        tuned_tiny.fingerprint(),
        cold_weights=False,
    )


def test_what_was_set_aside_is_compiled_early_and_measured_late() -> None:
    one, other, *_ = [task.info for task in tuned_tiny.tasks()]
    with made([one.name, other.name], {other.name: other.weight}) as defaults:
        defaults.compile()
        defaults.wait()
        (time_ms,) = defaults.times_ms().items()
    assert time_ms[0] == one.name and time_ms[1] > 0


def test_without_an_early_start_they_are_compiled_when_asked() -> None:
    one = tuned_tiny.tasks()[0].info
    with made([one.name], {}) as defaults:
        defaults.wait()
        assert list(defaults.times_ms()) == [one.name]


def test_nothing_starts_for_nothing() -> None:
    with made([], {}) as defaults:
        defaults.compile()
        assert defaults.times_ms() == {}
