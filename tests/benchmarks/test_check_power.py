"""The benchmark of the check, on a tiny model: a fault of each kind is refused."""

import json
from collections import Counter

import numpy as np
import pytest

from benchmarks import check_power
from benchmarks.helpers.check_power_table import table, totals
from benchmarks.helpers.power_faults import Fault, Mutated, noted, seeded_faults, wrong_attributes
from fewtune.runtime.tvm import tvm
from tests.tiny_models import tiny_convolutional_model


@pytest.fixture(scope="module")
def tiny():
    target = tvm.target.Target({"kind": "llvm", "num-cores": 1})
    return check_power.subject(tiny_convolutional_model(), target)


@pytest.mark.slow
def test_one_fault_of_each_kind_is_refused(tiny):
    calls = [noted(tiny.made.found, tiny.inputs(draw)) for draw in (0, 1)]
    faults = seeded_faults(*calls, np.random.default_rng(1))
    mutated = Mutated(tiny.made.found)
    kinds = dict.fromkeys(
        ["weight off by 1 %", "two channels swapped", "border row wrong", "tile left out"]
        + ["slice scaled"]
    )
    for fault in (next(faults) for _ in kinds):
        kinds[fault.kind] = check_power.outcome(tiny, mutated, fault)
    assert kinds == dict.fromkeys(kinds, "refused")


@pytest.mark.slow
def test_wrong_attributes_are_refused(tiny):
    assert len(wrong_attributes(tiny.made.simplified)) >= 4
    found = check_power.attribute_outcomes(tiny, 4, np.random.default_rng(0))
    assert found == Counter({"refused": 4})


@pytest.mark.slow
def test_the_right_library_is_not_refused_after_a_fault(tiny):
    assert tiny.used(tiny.made.found)[0] <= 1
    mutated = Mutated(tiny.made.found)
    assert tiny.used(mutated)[0] <= 1


@pytest.mark.slow
def test_a_fault_that_writes_the_same_has_no_effect(tiny):
    kernel, call, _ = noted(tiny.made.found, tiny.inputs(0))[0]
    fault = Fault("none", kernel, call, -1, lambda array: None)
    assert check_power.outcome(tiny, Mutated(tiny.made.found), fault) == "no effect"


def test_results_are_kept_and_told(tmp_path):
    path = tmp_path / "check_power.json"
    results = check_power.Results(path, again=False)
    results.content["models"]["a"] = {
        "kinds": {"slice scaled": {"refused": 9, "missed": 1}, "tile left out": {"no effect": 2}},
        "missed": ["slice scaled at k, call 0"],
        "right_used": 0.5,
        "kernels": 3,
        "taps": 2,
    }
    results.content["right"]["a"] = 0.5
    lines: list[str] = []
    results.write(lines.append, "a")
    assert lines == ["a"]
    kept = check_power.Results(path, again=False).content
    assert kept == json.loads(path.read_text())
    sums = totals(kept)
    assert (sums["faults"], sums["refused"], sums["no_effect"]) == (12, 9, 2)
    assert sums["refused_pct"] == 90.0
    assert "| slice scaled | 10 | 9 | 1 | 0 |" in table(kept)
    assert "(seed 0, zen, abc, 2026-11-28)" in table(
        kept | {"seed": 0, "cpu": "zen", "commit": "abc", "date": "2026-11-28"}
    )
    assert check_power.Results(path, again=True).content["models"] == {}
