"""Buffers that are reused between checks."""

from typing import Any

import numpy as np

from fewtune.runtime.tvm import tvm
from fewtune.schedule_check.task_reference import Buffers


def test_a_tensor_and_its_array_are_the_same_memory():
    buffers = Buffers()
    tensor, array = buffers.tensor(0, (2, 3), "float16")
    array[:] = [[1, 2, 3], [4, 5, 6]]
    assert tensor.shape == (2, 3)
    assert str(tensor.dtype) == "float16"
    np.testing.assert_array_equal(tensor.numpy(), array)


def test_buffers_grow_as_needed():
    buffers = Buffers()
    buffers.tensor(0, (100,), "float32")
    buffers.tensor(0, (3, 3), "int64")
    buffers.tensor(1, (), "bool")
    assert buffers.held_bytes == 401
    _, array = buffers.tensor(0, (200,), "float32")
    assert array.shape == (200,)
    assert buffers.held_bytes == 801


def test_large_arguments_are_laid_into_borrowed_memory():
    memory = tvm.runtime.empty((2**22,), "float32")
    lent = []

    def borrow(place: int, elements: int) -> Any:
        lent.append((place, elements))
        return memory if place == 1 else None

    buffers = Buffers(borrow)
    tensor, array = buffers.tensor(1, (2**11, 2**11), "float32")
    array[:] = 3
    assert memory.numpy().min() == tensor.numpy().max() == 3
    assert buffers.held_bytes == 0
    # Nothing is lent for the second, and the third is small.
    buffers.tensor(2, (2**22,), "float32")
    buffers.tensor(1, (5,), "float32")
    assert lent == [(1, 2**22), (2, 2**22)]
    assert buffers.held_bytes == 4 * (2**22 + 5)
