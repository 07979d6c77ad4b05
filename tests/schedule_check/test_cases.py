"""Selections by case and split axes give the results of full selections and of whole axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fewtune.runtime.tvm import te, tvm
from fewtune.schedule_check import cases, interpreter
from fewtune.schedule_check.numbers import Number

_SHAPE = (12, 5)
_GIVEN = np.random.default_rng(0).standard_normal((14, 5), dtype="float32")


def chained(condition: Callable[[Any, int], Any], ends: int = 3) -> Callable[..., Any]:
    """A chain of selections, such as those of a matrix of Winograd's algorithm."""

    def body(data: Any, i: Any, j: Any) -> Any:
        made: Any = data[i, j] * 3.0
        for number in reversed(range(ends)):
            value = data[i + 1 + number % 2, j] * float(number + 1) - data[i, j]
            made = tvm.tirx.Select(condition(i, number), value, made)
        return made

    return body


def nested(data: Any, i: Any, j: Any) -> Any:
    """Cases of one axis inside cases of another, and of the first again inside those."""
    inner = tvm.tirx.Select(i % 4 == 0, data[i, j] + 1.0, data[i + 2, j] * 2.0)
    return tvm.tirx.if_then_else(j < 2, tvm.tirx.Select(i % 2 == 0, inner, data[i, j]), inner)


def padded(data: Any, i: Any, j: Any) -> Any:
    inside = tvm.tirx.all(i >= 1, i < 11)
    return tvm.tirx.if_then_else(inside, data[i - 1, j] * 3.0, tvm.tirx.const(0.0))


def of_both(data: Any, i: Any, j: Any) -> Any:
    return tvm.tirx.Select(i + j < 7, data[i, j] * 3.0, data[i + 1, j])


def of_values(data: Any, i: Any, j: Any) -> Any:
    return tvm.tirx.Select(data[i, 0] * 3.0 > 0.0, data[i, j] * 3.0, data[i + 1, j])


def at_one(data: Any, i: Any, j: Any) -> Any:
    return tvm.tirx.Select(i == 0, tvm.tirx.const(1.0), tvm.tirx.Select(i < 20, data[i, j], 2.0))


def of_digits(data: Any, i: Any, j: Any) -> Any:
    """Rows of a tile, as the transforms of Winograd's algorithm read them."""
    made: Any = data[i // 4 * 3 + 2, j] - data[i % 4, j]
    for number in range(3):
        made = tvm.tirx.Select(i % 4 == number, data[i // 4 + 2 * number, j] * 3.0, made)
    return made


def of_inner_digits(data: Any, i: Any, j: Any) -> Any:
    return data[i // 2 % 3 + i // 6 * 5, j] * 3.0 + data[i % 6 // 2 + i % 2, j]


def of_shifted_digits(data: Any, i: Any, j: Any) -> Any:
    return data[(i + 1) // 4, j] * 3.0 + data[(i + 2) % 4, j] + data[i // 4, j]


def of_other_digits(data: Any, i: Any, j: Any) -> Any:
    """Digits that are not of one system, or of none: an extent of 5 is not split by 2."""
    made = data[i // 4, j] * 3.0 + data[i % 6, j] + data[i // 5, j]
    return made + data[j // 2, j] + data[i, (i + j) // 4]


def of_padded_digits(data: Any, i: Any, j: Any) -> Any:
    inside = tvm.tirx.all(i >= 1, i < 11)
    return tvm.tirx.if_then_else(inside, data[i // 2 - 1, j] * 3.0, tvm.tirx.const(0.0))


KERNELS: dict[str, Callable[..., Any]] = {
    "each case a place in three": chained(lambda i, number: i % 3 == number),
    "each case one place, the rest behind them": chained(lambda i, number: i == number),
    "places at unequal distances": chained(lambda i, number: i % 3 <= number, ends=2),
    "nested": nested,
    "padded": padded,
    "decided by both axes": of_both,
    "decided by rounded values": of_values,
    "digits": of_digits,
    "inner digits": of_inner_digits,
    "shifted digits": of_shifted_digits,
    "digits of several systems": of_other_digits,
    "padded digits": of_padded_digits,
    "constants, and a case that never holds": at_one,
}


def interpreted(body: Callable[..., Any]) -> Number:
    data = te.placeholder(_GIVEN.shape, name="data")
    made = te.compute(_SHAPE, lambda i, j: body(data, i, j), "made")
    (found,) = interpreter.outputs_of(te.create_prim_func([data, made]), [_GIVEN, None]).values()
    return found


@pytest.mark.parametrize("name", KERNELS)
def test_separate_cases_equal_full_selections(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    by_case = interpreted(KERNELS[name])
    monkeypatch.setattr(cases, "by_place", lambda *_: None)
    whole = interpreted(KERNELS[name])
    np.testing.assert_array_equal(by_case.value, whole.value)
    np.testing.assert_array_equal(by_case.error, whole.error)
    assert by_case.dtype == whole.dtype and by_case.value.dtype == whole.value.dtype


@pytest.mark.parametrize("name", KERNELS)
def test_split_axes_give_the_results_of_whole_axes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = interpreted(KERNELS[name])
    monkeypatch.setattr(
        interpreter, "radices", lambda _, extents: {name: [n] for name, n in extents.items()}
    )
    whole = interpreted(KERNELS[name])
    np.testing.assert_array_equal(split.value, whole.value)
    np.testing.assert_array_equal(split.error, whole.error)


def test_each_case_is_computed_only_where_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    given = interpreter.read

    def counted(*arguments: Any) -> list[np.ndarray]:
        found = given(*arguments)
        read.append(found[0].size)
        return found

    monkeypatch.setattr(interpreter, "read", counted)
    interpreted(chained(lambda i, number: i % 4 == number))
    # Two indices for each of three cases, and one for the last.
    assert read == [3 * 5] * 7
