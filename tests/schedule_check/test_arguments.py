"""Test arguments of checked kernels: large ones are views of a small table."""

from __future__ import annotations

import numpy as np

from fewtune.runtime.tvm import te, tvm
from fewtune.schedule_check.arguments import drawn, signature
from fewtune.schedule_check.buffers import memory_bytes
from fewtune.schedule_check.interpreter import outputs_of

ROWS, COLUMNS = 2100, 2048


def product() -> tvm.tirx.PrimFunc:
    """One row by a large matrix."""
    left = te.placeholder((1, ROWS), name="left")
    right = te.placeholder((ROWS, COLUMNS), name="right")
    k = te.reduce_axis((0, ROWS), "k")
    made = te.compute(
        (1, COLUMNS), lambda i, j: te.sum(left[i, k] * right[k, j], axis=k), "product"
    )
    return te.create_prim_func([left, right, made])


def test_a_large_argument_takes_little_memory_and_its_neighbours_differ() -> None:
    weights = drawn(signature(product()), 1, positive=False)
    assert weights.shape == (ROWS, COLUMNS)
    assert memory_bytes(weights) < weights.nbytes / 3
    for row in range(1, 5):
        for column in range(-64, 65):
            below = weights[row:, 64 + column : COLUMNS - 64 + column]
            assert np.mean(below == weights[:-row, 64:-64]) < 0.01


def test_a_product_with_a_large_argument_is_computed_in_parts() -> None:
    function = product()
    given = [drawn(signature(function), place, positive=False) for place in (0, 1)]
    (made,) = outputs_of(function, [*given, None]).values()
    right = given[0].astype("float64") @ given[1].astype("float64")
    assert np.all(np.abs(made.value - right) <= made.error)
    assert made.error.max() < 0.01
