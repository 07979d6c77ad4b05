"""Outputs are compared a few elements at a time; every element counts."""

from __future__ import annotations

import numpy as np
import pytest

from fewtune.schedule_check.expected import Expected

COUNT = 3 * 2**14 + 5
RANDOM = np.random.default_rng(0)


def expected(dtype: str) -> Expected:
    values = (100 * RANDOM.random((1, COUNT))).astype(dtype)
    return Expected.of(values, 0.0 if dtype == "int32" else 1e-4, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("place", [0, 2**14 - 1, 2**14, COUNT - 1])
def test_one_wrong_element_is_a_fault(dtype: str, place: int) -> None:
    right = expected(dtype)
    found = right.value.copy()
    assert right.fault(found) == ""
    found[0, place] += 1
    assert f"1 of {COUNT} elements differ; at [0, {place}]" in right.fault(found)
    assert not right.agrees(found)


def test_a_missing_element_is_a_fault() -> None:
    right = expected("float32")
    found = right.value.copy()
    found[0, -1] = np.nan
    assert f"at [0, {COUNT - 1}] it has nan" in right.fault(found)


def test_what_is_not_finite_hides_no_fault() -> None:
    values = np.zeros((2, COUNT), "float32")
    values[:, 3], values[0, -1] = np.inf, np.nan
    right = Expected.of(values, 0.0, "float32")
    assert right.fault(values.copy()) == ""
    found = values.copy()
    found[1, 4] = 1.0
    assert "1 of" in right.fault(found)


@pytest.mark.parametrize("allowance", [1.0, [[0.0], [1.0]]])
def test_an_allowance_may_be_repeated(allowance: float | list[list[float]]) -> None:
    values = np.zeros((2, COUNT), "int8")
    room = np.broadcast_to(np.asarray(allowance, "float32"), values.shape)
    right = Expected(values, room)
    found = values.copy()
    found[1, 5] = 1
    assert right.fault(found) == ""
    found[0, COUNT // 2] = 2
    assert "1 of" in right.fault(found)
    assert Expected(np.zeros((0, 3), "int8"), None).fault(np.zeros((0, 3), "int8")) == ""
