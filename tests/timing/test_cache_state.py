"""What the caches hold when a measured call begins: sizes, what is flushed, what is rewritten."""

from math import inf
from typing import Any

import numpy as np
import pytest

from fewtune.machine import host
from fewtune.measure.measurer import Measurer, module_specs
from fewtune.runtime.tvm import build, tvm
from fewtune.schedule.defaults import default_schedule
from fewtune.timing import timer as cache_state
from fewtune.timing.timer import CacheState, PreparedKernel, sliced
from tests import tuned_tiny


def test_the_largest_cache_and_the_one_before_it_count(tmp_path):
    for index, size in enumerate(("32K", "1024K", "32M", "unknown")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(f"{size}\n")
    assert host.last_level_cache_bytes(tmp_path) == 32 * 2**20
    assert host.own_cache_bytes(tmp_path) == 2**20
    assert host.own_cache_bytes(tmp_path / "index0") is None
    assert host.last_level_cache_bytes(tmp_path / "absent") is None
    assert host.own_cache_bytes(tmp_path / "absent") is None


def _ones(elements: int, dtype: str = "float32") -> Any:
    return tvm.runtime.tensor(np.ones((2, elements // 2), dtype))


@pytest.mark.parametrize("once_s", [0.0, 1.0])
def test_before_each_call_weights_are_flushed_and_activations_written_anew(once_s, monkeypatch):
    module = default_schedule(tuned_tiny.convolutions()["b"].mod, tuned_tiny.target()).mod
    built = build(module, tuned_tiny.target())
    device = tvm.cpu()
    arguments = [
        tvm.runtime.tensor(np.ones(shape, dtype), device) for shape, dtype in module_specs(module)
    ]
    calls: list[tuple[str, Any]] = []
    state = CacheState(tuned_tiny.target(), 1)
    monkeypatch.setattr(state, "flush", lambda given: calls.append(("flush", given)))
    monkeypatch.setattr(state, "rewrite", lambda given: calls.append(("rewrite", given)))
    data, weight, *_, result = arguments
    times_s = state.evaluate(
        PreparedKernel(built, arguments, [weight], [data, result]), device, 3, once_s
    )
    assert len(times_s) == 3
    assert min(times_s) > 0
    assert [name for name, _ in calls] == ["rewrite", "rewrite", "flush"] * 3
    for (_, given), expected in zip(calls, [result, data, weight] * 3, strict=True):
        assert given.same_as(expected)


def test_what_is_written_is_evicted_where_activations_outgrow_the_cores_caches():
    data, result = _ones(1024), _ones(512)
    assert cache_state.to_be_evicted([data, result], 4096, 2**20) == []
    (evicted,) = cache_state.to_be_evicted([data, result], 4095, 2**20)
    assert evicted is result
    assert cache_state.to_be_evicted([data, result], 4095, inf) == [evicted]
    # What outgrows the largest cache twice evicts itself.
    assert cache_state.to_be_evicted([data, result], 4095, 3072) == [evicted]
    assert cache_state.to_be_evicted([data, result], 4095, 3071) == []
    assert cache_state.to_be_evicted([data, result], None, 2**20) == []


@pytest.mark.parametrize(
    ("threads", "axis", "shape", "rewritten"),
    [(1, 0, (1, 1000), 992), (3, 0, (1, 1000), 960), (2, 1, (10, 100), 96)],
)
def test_rewriting_twice_leaves_what_was_there(threads, axis, shape, rewritten):
    drawn = np.random.default_rng(0).integers(0, 1024, shape).astype("float32") / 1024
    tensor = tvm.runtime.tensor(drawn.reshape(10, 4, 25))
    rewrite = CacheState(tuned_tiny.target(), threads).rewrite
    slices = sliced(tensor, axis)
    assert slices.shape == shape
    rewrite(slices)
    once = tensor.numpy().reshape(shape)
    assert np.array_equal(once[:, :rewritten], 1 - drawn[:, :rewritten])
    assert np.array_equal(once[:, rewritten:], drawn[:, rewritten:])
    rewrite(slices)
    assert np.array_equal(tensor.numpy().reshape(shape), drawn)


def test_weights_outgrow_half_the_cache():
    tasks = tuned_tiny.tasks()
    needed = cache_state.weights_bytes(tasks)
    assert not cache_state.weights_outgrow_cache(tasks, 2 * needed)
    assert cache_state.weights_outgrow_cache(tasks, 2 * needed - 1)


def test_a_worker_measures_with_cold_weights():
    module = default_schedule(tuned_tiny.convolutions()["b"].mod, tuned_tiny.target()).mod
    measurer = Measurer(tuned_tiny.pool(), cold_weights=True)
    (outcome,) = measurer.measure([module], [module_specs(module)], [None])
    assert outcome.cause is None
    assert len(outcome.run_s) == 5
    assert min(outcome.run_s) > 0
