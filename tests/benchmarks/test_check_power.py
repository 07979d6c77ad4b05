"""The benchmark of the check, on a tiny model: a fault of each kind is refused."""

from collections import Counter

import numpy as np
import pytest

from benchmarks import check_power
from benchmarks.helpers.power_faults import Mutated, noted, seeded_faults, wrong_attributes
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
    rare = dict.fromkeys(["infinity lost", "digits lost far from zero", "huge element spread"])
    for fault in (next(faults) for _ in [*kinds, *rare]):
        of_kind = kinds if fault.kind in kinds else rare
        of_kind[fault.kind] = check_power.outcome(tiny, mutated, fault)
    assert kinds == dict.fromkeys(kinds, "refused")
    # An infinite element makes every output of this network NaN, so it is not drawn.
    assert rare.pop("infinity lost") == "no effect"
    assert rare == dict.fromkeys(rare, "told")


@pytest.mark.slow
def test_wrong_attributes_are_refused(tiny):
    assert len(wrong_attributes(tiny.made.simplified.whole())) >= 4
    found = check_power.attribute_outcomes(tiny, 4, np.random.default_rng(0))
    assert found == Counter({"refused": 4})


@pytest.mark.slow
def test_the_right_library_is_not_refused_after_a_fault(tiny):
    assert tiny.used(tiny.made.found)[0] <= 1
    mutated = Mutated(tiny.made.found)
    assert tiny.used(mutated)[0] <= 1
