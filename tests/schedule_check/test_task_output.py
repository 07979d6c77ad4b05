"""Outputs are compared a few elements at a time; every element counts."""

import numpy as np
import pytest

from fewtune.schedule_check.check import TaskOutput

COUNT = 3 * 2**14 + 5


def expected(dtype: str, *, may_step: bool = False) -> TaskOutput:
    values = (100 * np.random.default_rng(0).random((1, COUNT))).astype(dtype)
    return TaskOutput.of(values, 16, may_step)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
@pytest.mark.parametrize("place", [0, 2**14 - 1, 2**14, COUNT - 1])
def test_one_wrong_element_is_a_fault(dtype, place):
    right = expected(dtype)
    found = right.value.copy()
    assert right.fault(found) == ""
    found[0, place] += 50
    assert f"1 of {COUNT} elements differ; at [0, {place}]" in right.fault(found)


@pytest.mark.parametrize("may_step", [False, True])
def test_a_missing_element_is_a_fault(may_step):
    right = expected("float32", may_step=may_step)
    found = right.value.copy()
    found[0, -1] = np.nan
    assert f"at [0, {COUNT - 1}] it has nan" in right.fault(found)


def test_what_is_not_finite_hides_no_fault():
    values = np.zeros((2, COUNT), "float32")
    values[:, 3], values[0, -1] = np.inf, np.nan
    right = TaskOutput.of(values, 1, False)
    assert right.fault(values.copy()) == ""
    found = values.copy()
    found[1, 4] = 1.0
    assert "1 of" in right.fault(found)


def test_small_outputs_are_compared_by_their_own_size():
    right = TaskOutput.of(np.full((5, 5), 1e-6, "float32"), 4, False)
    assert right.fault(right.value * np.float32(1.000001)) == ""
    assert "25 of 25" in right.fault(right.value * np.float32(1.01))


def test_outputs_that_rounding_moves_have_more_room():
    values = np.random.default_rng(0).random((9, 9), "float32")
    found = values + np.float32(1e-3)
    assert "81 of 81" in TaskOutput.of(values, 1, False).fault(found)
    assert TaskOutput.of(values, 1, False, moved=values - np.float32(1e-3)).fault(found) == ""


@pytest.mark.parametrize(
    ("count", "off", "is_right"), [(5, 1, True), (5, -1, True), (6, 1, False), (1, 2, False)]
)
def test_a_few_rounded_bytes_may_be_off_by_one(count, off, is_right):
    right = TaskOutput.of(np.full(1000, 7, "uint8"), 1, True)
    found = right.value.astype(int)
    found[:count] += off
    assert (right.fault(found.astype("uint8")) == "") == is_right
    exact = TaskOutput.of(right.value, 1, False)
    assert f"{count} of 1000" in exact.fault(found.astype("uint8"))
