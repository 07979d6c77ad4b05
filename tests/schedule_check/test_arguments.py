"""Test arguments of checked kernels: large ones are views of a small table."""

import numpy as np
import pytest

from fewtune.schedule_check.check import Parameter, Signature, drawn


def weights(*shape: int) -> np.ndarray:
    return drawn(Signature([Parameter(shape, "float32", True, False)]), 0, positive=False)


@pytest.mark.parametrize("shape", [(20, 300), (2100, 2048)])
def test_neighbors_of_an_argument_differ(shape):
    given = weights(*shape)
    rows, columns = shape
    assert given.shape == shape and 0.2 < given.std() < 0.8
    for row in range(1, 5):
        for column in range(-64, 65):
            below = given[row:, 64 + column : columns - 64 + column]
            assert np.mean(below == given[:-row, 64:-64]) < 0.01


def test_indices_are_within_the_axis_and_differ():
    signature = Signature([Parameter((5, 8), "int64", True, False)], most_index=41)
    found = drawn(signature, 0, positive=False)
    assert len(np.unique(found)) == 40 and found.min() >= 0 and found.max() < 41
