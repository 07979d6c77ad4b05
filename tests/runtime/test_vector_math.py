"""Exponentials and their kin in vectors: as exact as float32 allows, and no call of the library."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm.script import tirx as T  # noqa: N812

from fewtune.runtime.tvm import build, compiled, te, tvm
from tests import tuned_tiny

LANES = 16
ELEMENTS = 2**12
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-20, -1e-20, 3e38, -3e38]
FUNCTIONS = {
    "exp": (tvm.tirx.exp, np.exp, (-87, 88)),
    "tanh": (tvm.tirx.tanh, np.tanh, (-12, 12)),
    "erf": (tvm.tirx.erf, np.vectorize(math.erf, otypes=[float]), (-5, 5)),
    "log": (tvm.tirx.log, np.log, (1e-30, 100)),
    "sigmoid": (tvm.tirx.sigmoid, lambda x: 1 / (1 + np.exp(-x)), (-30, 30)),
    "cube": (lambda x: tvm.tirx.power(x, tvm.tirx.const(3.0, "float32")), lambda x: x**3, (-9, 9)),
}
POWERS = [0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, -0.5, -1.0, -2.0]


def vectorised(function: Callable[[Any], Any], dtype: str = "float32") -> tvm.s_tir.Schedule:
    given = te.placeholder((ELEMENTS,), dtype=dtype)
    result = te.compute((ELEMENTS,), lambda i: function(given[i]))
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([given, result])}))
    (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
    (loop,) = schedule.get_loops(block)
    _, inner = schedule.split(loop, [None, LANES])
    schedule.vectorize(inner)
    return schedule


def results(function: Callable[[Any], Any], values: np.ndarray) -> np.ndarray:
    library = build(vectorised(function, str(values.dtype)).mod, tuned_tiny.target())
    result = tvm.runtime.tensor(np.zeros_like(values))
    library["main"](tvm.runtime.tensor(values), result)
    return result.numpy()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_are_a_few_units_in_the_last_place(name):
    function, exact, bounds = FUNCTIONS[name]
    values = np.random.default_rng(0).uniform(*bounds, ELEMENTS).astype("float32")
    expected = exact(values.astype("float64"))
    error = np.abs(results(function, values) - expected) / np.abs(expected)
    assert error.max() < 4e-7


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_no_number_or_infinite_is_as_it_should_be(name):
    function, exact, _ = FUNCTIONS[name]
    values = np.ones(ELEMENTS, "float32")
    values[: len(SPECIAL)] = SPECIAL
    with np.errstate(all="ignore"):
        expected = exact(values.astype("float64")).astype("float32")
    assert np.allclose(results(function, values), expected, rtol=4e-7, atol=0, equal_nan=True)


@pytest.mark.parametrize("exponent", POWERS)
def test_common_powers_are_products_and_roots(exponent):
    values = np.random.default_rng(0).uniform(0.1, 9, ELEMENTS).astype("float32")

    def raised(x: Any) -> Any:
        return tvm.tirx.power(x, tvm.tirx.const(exponent, "float32"))

    expected = values.astype("float64") ** exponent
    assert np.allclose(results(raised, values), expected, rtol=4e-7)
    library = compiled(vectorised(raised).mod, tuned_tiny.target())
    assert "powf" not in library.inspect_source("asm")


@pytest.mark.parametrize("exponent", POWERS)
def test_powers_of_zeros_and_infinities_are_as_ieee_754_has_them(exponent):
    values = np.ones(ELEMENTS, "float32")
    ends = [*SPECIAL, -1.0, 1e30, -1e30, 2e38, 1e-30, 1e-44, -1e-44]
    values[: len(ends)] = ends
    with np.errstate(all="ignore"):
        # By an array: numpy takes the root of a number whose one exponent is a half.
        exponents = np.full(ELEMENTS, exponent)
        expected = np.power(values.astype("float64"), exponents).astype("float32")
    found = results(lambda x: tvm.tirx.power(x, tvm.tirx.const(exponent, "float32")), values)
    np.testing.assert_allclose(found, expected, rtol=4e-7, atol=2e-45)
    is_number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found[is_number]), np.signbit(expected[is_number]))


@pytest.mark.parametrize("name", ["exp", "tanh", "erf", "log", "sigmoid"])
def test_nothing_is_called_once_an_element(name):
    library = compiled(vectorised(FUNCTIONS[name][0]).mod, tuned_tiny.target())
    assembly = library.inspect_source("asm")
    assert not [name for name in ("expf", "tanhf", "erff", "logf") if name in assembly]


def test_rounding_is_vectorized():
    values = np.linspace(-4, 4, ELEMENTS, dtype="float32")
    np.testing.assert_array_equal(results(tvm.tirx.nearbyint, values), np.rint(values))

    @T.prim_func(s_tir=True)
    def rounded(given: T.Buffer((LANES,), "float32"), result: T.Buffer((LANES,), "float32")):
        for lane in T.vectorized(LANES):
            result[lane] = T.nearbyint(given[lane])

    found = tvm.tirx.transform.VectorizeLoop()(tvm.IRModule({"main": rounded}))
    assert "for lane" not in found.script()
