"""Kernels of two libraries, timed where the model calls them."""

import pytest

from fewtune.artifacts import ImportReport
from fewtune.benchmark.kernels import KernelSamples, kernel_pairs
from fewtune.runtime.executable import CompiledModel
from fewtune.runtime.target import target_from_json
from fewtune.verify.session import random_inputs
from tests import tuned_tiny


def rounds(**samples_s: list[float]) -> KernelSamples:
    return samples_s


def test_what_is_lost_is_judged_round_by_round():
    processes = [
        # The machine was half as fast in the second round, for both.
        {"selective": rounds(conv=[0.012, 0.024], relu=[0.001, 0.002]),
         "full": rounds(conv=[0.010, 0.020], relu=[0.003, 0.006])},
        {"selective": rounds(conv=[0.013], relu=[0.001]),
         "full": rounds(conv=[0.010], relu=[0.003])},
    ]  # fmt: skip
    lost, gained = kernel_pairs(processes, {"relu": "relu6"}, {"conv": 2, "relu6": 1})
    assert (lost.task, gained.task) == ("conv", "relu6")
    assert lost.lost_ms == pytest.approx(3.0)
    assert lost.lost_p10_ms < lost.lost_ms < lost.lost_p90_ms
    # The figures of one call.
    assert (lost.selective_ms, lost.full_ms) == pytest.approx((6.5, 5.0))
    assert gained.lost_ms == pytest.approx(-2.0)


@pytest.mark.slow
def test_a_library_tells_what_its_kernels_take():
    inputs = ImportReport.read(tuned_tiny.imported()).inputs
    feeds = random_inputs(inputs, 0)
    target = target_from_json(tuned_tiny.fingerprint().target)
    model = CompiledModel(tuned_tiny.compiled() / "model.so", target)
    ordered = [feeds[spec.name] for spec in inputs]
    before = model.outputs(ordered)
    times_s = model.kernel_times_s()
    assert all(each_s > 0 for each_s in times_s.values())
    assert not any("builtin" in symbol for symbol in times_s)
    # A second run is not added to the first, and the model itself runs on without a clock.
    assert set(model.kernel_times_s()) == set(times_s)
    assert all((a == b).all() for a, b in zip(model.outputs(ordered), before, strict=True))
