"""Weights that outgrow the cache: which they are, and when they do."""

from fewtune.measure.measurer import Measurer, module_specs
from fewtune.schedule.defaults.default import default_schedule
from fewtune.timing import cache_state as cold
from tests import tuned_tiny


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
