"""NaN and infinities in compiled kernels: what onnxruntime gives, and at no further instruction."""

import re
from functools import partial

import numpy as np
import pytest

from fewtune.runtime.tvm import build, compiled, te, tvm
from tests import tuned_tiny

tirx = tvm.tirx
ELEMENTS, LANES = 64, 16
NAN, INF = np.nan, np.inf
FIRST = np.resize(np.array([NAN, 1, -2, INF, -INF, 0, NAN, 3], np.float32), ELEMENTS)
SECOND = np.resize(np.array([1, NAN, 0, NAN, NAN, -1, NAN, 4], np.float32), ELEMENTS)


def kernel(compute, is_vector=True, dtype="float32"):
    """Of two vectors an output, its loop in vectors."""
    a, b = (te.placeholder((ELEMENTS,), dtype, name=name) for name in "ab")
    c = te.compute((ELEMENTS,), lambda i: compute(a[i], b[i]), name="c")
    function = te.create_prim_func([a, b, c]).with_attr("global_symbol", "main")
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": function}))
    if is_vector:
        _, inner = schedule.split(schedule.get_loops(schedule.get_sblock("c"))[0], [None, LANES])
        schedule.vectorize(inner)
    return schedule.mod


def zero(dtype="float32"):
    return tirx.const(0, dtype)


COMPUTED = {
    "relu": (lambda a, b: tirx.max(a, zero(str(a.dtype))), lambda a, b: np.maximum(a, 0)),
    "below": (lambda a, b: tirx.min(a, zero(str(a.dtype))), lambda a, b: np.minimum(a, 0)),
    "larger": (tirx.max, np.maximum),
    "smaller": (tirx.min, np.minimum),
    "of_sums": (lambda a, b: tirx.max(a + b, b), lambda a, b: np.maximum(a + b, b)),
    "leaky": (
        lambda a, b: tirx.max(a, a * tirx.const(0.5, str(a.dtype))),
        lambda a, b: np.maximum(a, a * np.float32(0.5)),
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("is_vector", [True, False])
@pytest.mark.parametrize("name", COMPUTED)
def test_a_maximum_of_two_is_nan_where_either_is(name, is_vector, dtype):
    ours, numpy_has = COMPUTED[name]
    first, second = FIRST.astype(dtype), SECOND.astype(dtype)
    result = tvm.runtime.tensor(np.zeros(ELEMENTS, dtype))
    module = build(kernel(ours, is_vector, dtype), tuned_tiny.target())
    module["main"](tvm.runtime.tensor(first), tvm.runtime.tensor(second), result)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(result.numpy(), numpy_has(first, second))


@pytest.mark.parametrize("name", ["relu", "below", "leaky"])
def test_activations_take_no_further_instruction(name):
    target = tvm.target.Target({"kind": "llvm", "mcpu": "skylake-avx512"})
    text = compiled(kernel(COMPUTED[name][0]), target).inspect_source("asm")
    assert len(re.findall(r"\bv(?:max|min)ps\b", text)) == ELEMENTS // LANES
    assert not re.search(r"\bvcmp\w*ps\b", text)


def over(extreme, data, place, row):
    return extreme(data[row, place], axis=place)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_extremes_of_infinities_are_infinite(dtype):
    data = te.placeholder((4, 8), dtype, name="data")
    place = te.reduce_axis((0, 8), name="place")
    for extreme, infinity in ((te.max, -INF), (te.min, INF)):
        found = te.compute((4,), partial(over, extreme, data, place), name="found")
        module = tvm.IRModule({"main": te.create_prim_func([data, found])})
        given = np.full((4, 8), infinity, dtype)
        given[1, 3], limits = 5.0, np.finfo(dtype)
        given[2, 7] = limits.min if infinity < 0 else limits.max
        result = tvm.runtime.tensor(np.zeros(4, dtype))
        build(module, tuned_tiny.target())["main"](tvm.runtime.tensor(given), result)
        assert result.numpy().tolist() == [infinity, 5.0, given[2, 7], infinity]
