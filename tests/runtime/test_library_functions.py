"""Kernels marked for the C library's functions call them; unmarked ones have vectors."""

import math

import numpy as np
import pytest

from fewtune.runtime.tvm import build, compiled, te, tvm
from fewtune.runtime.vector_math import left_to_library


def vector_module(dtype: str) -> tvm.IRModule:
    data = te.placeholder((64,), dtype, "data")
    result = te.compute(
        (64,), lambda i: tvm.tirx.erf(data[i]) + tvm.tirx.exp(data[i]), name="result"
    )
    schedule = tvm.s_tir.Schedule(te.create_prim_func([data, result]))
    (loop,) = schedule.get_loops(schedule.get_sblock("result"))
    schedule.vectorize(schedule.split(loop, [None, 8])[1])
    return schedule.mod


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("is_marked", [False, True])
def test_marked_kernels_call_the_library(dtype, is_marked):
    module = vector_module(dtype)
    if is_marked:
        module = left_to_library(module)
    target = tvm.target.Target({"kind": "llvm"})
    calls = "@erf" in compiled(module, target).inspect_source("ll")
    assert calls == (is_marked or dtype == "float64")
    values = np.linspace(-3, 3, 64).astype(dtype)
    data, result = tvm.runtime.tensor(values), tvm.runtime.tensor(np.zeros(64, dtype))
    build(module, target)["main"](data, result)
    expected = [math.erf(value) + math.exp(value) for value in values]
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5)
