"""Building beside measuring, as for a device of its own: every candidate gets its outcome."""

import numpy as np
import pytest

from fewtune.measure.measurer import Measurer, module_specs
from fewtune.runtime.tvm import tvm
from fewtune.schedule.space.search_space import SearchSpace
from tests import tuned_tiny

pytestmark = pytest.mark.slow


def candidates(count: int) -> list[tvm.IRModule]:
    space = SearchSpace(tuned_tiny.convolutions()["c"].mod, tuned_tiny.target())
    random = np.random.default_rng(0)
    made = [space.make(space.random_point(random), seed) for seed in range(1, count + 1)]
    return [each.schedule.mod for each in made if each.schedule is not None]


def unbuildable() -> tvm.IRModule:
    """A module whose kernel calls a function that no linker finds."""
    from tvm import te

    data = te.placeholder((4,), name="data")
    out = te.compute((4,), lambda i: tvm.tirx.call_extern("float32", "no_such_function", data[i]))
    return tvm.IRModule({"main": te.create_prim_func([data, out])})


def test_a_failure_costs_its_candidate_only():
    good = candidates(3)
    bad = unbuildable()
    modules = [good[0], bad, *good[1:]]
    measurer = Measurer(tuned_tiny.pool(), overlap=True)
    outcomes = measurer.measure(modules, [module_specs(m) for m in modules], [None] * 4)
    assert [outcome.run_s is None for outcome in outcomes] == [False, True, False, False]
    assert outcomes[1].cause in ("build_error", "runtime_error", "runtime_crash")
    assert sum(measurer.failures.values()) == 1
