"""Kernels of two libraries, timed where the model calls them."""

import pytest

from fewtune.artifacts import ImportReport
from fewtune.benchmark.kernels import KernelSamples, kernel_pairs, kernels_in_turns
from fewtune.runtime.executable import CompiledModel
from fewtune.runtime.target import target_from_json
from fewtune.verify.session import random_inputs
from tests import tuned_tiny


class Told:
    """A model that tells the same times in every run, and notes who was run."""

    def __init__(self, name: str, order: list[str], times_s: dict[str, float]) -> None:
        self._name, self._order, self._times_s = name, order, times_s

    def kernel_times_s(self) -> dict[str, float]:
        self._order.append(self._name)
        return self._times_s


def test_libraries_take_turns_and_copies_of_each():
    order: list[str] = []
    times_s = {
        "conv_prepacked": 1.0,
        "conv": 2.0,
        "conv_prepacked_in_place0": 4.0,
        "pool_in_place3": 3.0,
    }
    models = {
        name: [Told(f"{name}{copy}", order, times_s) for copy in range(2)] for name in ("a", "b")
    }
    samples = kernels_in_turns(models)
    # One kernel of the model under whatever names the library has it.
    assert set(samples["a"]) == {"conv", "pool"}
    assert set(samples["a"]["conv"]) == {7.0}
    rounds = {name: len(samples[name]["pool"]) for name in models}
    assert rounds["a"] == rounds["b"] >= 4
    # A first run each; then four runs in a row, each model in its turn.
    turns = order[4::4]
    assert turns[:8] == ["a0", "b0", "b0", "a0", "a1", "b1", "b1", "a1"]


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
