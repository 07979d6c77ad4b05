"""Weights that outgrow the cache: which they are, when they do, and that they are flushed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewtune.schedule.default import default_schedule
from fewtune.tuning import cold
from fewtune.tuning.measure import Measurer, module_specs
from fewtune.tvm_runtime import build, tvm
from tests import tuned_tiny


def test_the_largest_cache_and_the_one_before_it_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index, size in enumerate(("32K", "1024K", "32M", "unknown")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(f"{size}\n")
    monkeypatch.setattr(cold, "_CACHES", tmp_path)
    assert cold.last_level_cache_bytes() == 32 * 2**20
    assert cold.own_cache_bytes() == 2**20
    monkeypatch.setattr(cold, "_CACHES", tmp_path / "index0")
    assert cold.own_cache_bytes() is None
    monkeypatch.setattr(cold, "_CACHES", tmp_path / "absent")
    assert cold.last_level_cache_bytes() is None
    assert cold.own_cache_bytes() is None
    assert not cold.weights_outgrow_cache(tuned_tiny.tasks())


def test_weights_are_counted_once_a_call() -> None:
    task = tuned_tiny.convolutions()["b"]
    assert cold.weight_places(task.mod) == [1]
    own_bytes = 4 * math.prod(task.info.shapes[1])
    assert cold.weights_bytes([task]) == own_bytes * task.info.weight
    pool = [each for each in tuned_tiny.tasks() if each.info.operator == "pool"]
    assert cold.weights_bytes([task, *pool]) == cold.weights_bytes([task])


def test_weights_outgrow_half_the_cache() -> None:
    tasks = tuned_tiny.tasks()
    needed = cold.weights_bytes(tasks)
    assert not cold.weights_outgrow_cache(tasks, 2 * needed)
    assert cold.weights_outgrow_cache(tasks, 2 * needed - 1)


def test_weights_and_nothing_else_are_flushed_before_each_call() -> None:
    module = default_schedule(tuned_tiny.convolutions()["b"].mod, tuned_tiny.target()).mod
    built = build(module, tuned_tiny.target())
    device = tvm.cpu()
    arguments = [
        tvm.runtime.tensor(np.ones(shape, dtype), device) for shape, dtype in module_specs(module)
    ]
    flusher = cold.WeightFlusher(tuned_tiny.target(), tuned_tiny.fingerprint().threads)
    flushed: list[tuple[Any, ...]] = []
    flusher._flush = lambda *given: flushed.append(given)  # noqa: SLF001
    times_s = flusher.evaluate(built, device, arguments, [arguments[1]], 3)
    assert len(times_s) == 3
    assert min(times_s) > 0
    assert len(flushed) == 3
    assert all(len(each) == 1 and each[0].same_as(arguments[1]) for each in flushed)


def test_weights_that_leave_nothing_in_the_cache_are_not_flushed() -> None:
    small, large = (tvm.runtime.tensor(np.ones(size, "float32")) for size in (512, 513))
    assert [each.shape for each in cold.to_be_flushed([small, large], 1024)] == [(512,)]
    assert len(cold.to_be_flushed([small, large], None)) == 2


def test_a_worker_measures_with_cold_weights() -> None:
    module = default_schedule(tuned_tiny.convolutions()["b"].mod, tuned_tiny.target()).mod
    measurer = Measurer(tuned_tiny.pool(), cold_weights=True)
    (outcome,) = measurer.measure([module], [module_specs(module)], [None])
    assert outcome.cause is None
    assert len(outcome.run_s) == 5
    assert min(outcome.run_s) > 0
    duelled = measurer.duel([module, module], module_specs(module), rounds=3, round_s=1e-4)
    assert [len(each.run_s) for each in duelled] == [3, 3]
