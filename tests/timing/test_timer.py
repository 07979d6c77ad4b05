"""A candidate is timed by TVM's evaluator, or call by call where it takes long."""

import pytest

from fewtune.measure.measurer import module_specs
from fewtune.runtime.tvm import build
from fewtune.schedule.defaults import default_schedule
from fewtune.timing import timer
from fewtune.timing.timer import BuiltKernel, Race, Timer
from tests import tuned_tiny


@pytest.mark.parametrize("long_s", [0.0, 1.0])
def test_a_race_gives_a_time_for_each_repeat(long_s, monkeypatch):
    monkeypatch.setattr(timer, "_LONG_S", long_s)
    module = default_schedule(tuned_tiny.convolutions()["b"].mod, tuned_tiny.target()).mod
    specs = module_specs(module)
    built = BuiltKernel(build(module, tuned_tiny.target()), [tuple(s) for s, _ in specs], [])
    times_s = Timer(tuned_tiny.target(), 1).race(built, specs, Race(None)).run_s
    assert len(times_s) == Race(None).full_repeats
    assert min(times_s) > 0
