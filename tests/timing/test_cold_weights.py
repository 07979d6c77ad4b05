"""Weights that outgrow the cache: which they are, and when they do."""

import math

from fewtune.measure.measurer import Measurer, module_specs
from fewtune.schedule.defaults.default import default_schedule
from fewtune.task.weight_layout import free_places
from fewtune.timing import cache_state as cold
from tests import tuned_tiny


def test_weights_are_counted_once_a_call():
    task = tuned_tiny.convolutions()["b"]
    assert free_places(task.mod["main"]) == [1]
    own_bytes = 4 * math.prod(task.info.shapes[1])
    assert cold.weights_bytes([task]) == own_bytes * task.info.weight
    pool = [each for each in tuned_tiny.tasks() if each.info.operator == "pool"]
    assert cold.weights_bytes([task, *pool]) == cold.weights_bytes([task])


def test_weights_outgrow_half_the_cache():
    tasks = tuned_tiny.tasks()
    needed = cold.weights_bytes(tasks)
    assert not cold.weights_outgrow_cache(tasks, 2 * needed)
    assert cold.weights_outgrow_cache(tasks, 2 * needed - 1)


def test_a_worker_measures_with_cold_weights():
    module = default_schedule(tuned_tiny.convolutions()["b"].mod, tuned_tiny.target()).mod
    measurer = Measurer(tuned_tiny.pool(), cold_weights=True)
    (outcome,) = measurer.measure([module], [module_specs(module)], [None])
    assert outcome.cause is None
    assert len(outcome.run_s) == 5
    assert min(outcome.run_s) > 0
    both = measurer.build([module, module])
    duelled = measurer.duel(both, module_specs(module), rounds=3, round_s=1e-4)
    assert [len(each.run_s) for each in duelled] == [3, 3]
