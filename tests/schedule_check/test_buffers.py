"""Buffers that are reused between checks."""

from __future__ import annotations

import numpy as np

from fewtune.schedule_check.buffers import Buffers, copy, empty


def test_a_tensor_and_its_array_are_the_same_memory() -> None:
    buffers = Buffers()
    tensor, array = buffers.tensor(0, (2, 3), "float16")
    array[:] = [[1, 2, 3], [4, 5, 6]]
    assert tensor.shape == (2, 3)
    assert str(tensor.dtype) == "float16"
    np.testing.assert_array_equal(tensor.numpy(), array)


def test_buffers_grow_as_needed() -> None:
    buffers = Buffers()
    buffers.tensor(0, (100,), "float32")
    buffers.tensor(0, (3, 3), "int64")
    buffers.tensor(1, (), "bool")
    assert buffers.held_bytes == 401
    _, array = buffers.tensor(0, (200,), "float32")
    assert array.shape == (200,)
    assert buffers.held_bytes == 801


def test_large_arrays_are_copied_whole() -> None:
    """On more than one core, several threads copy."""
    source = np.arange(2**22 + 2**12, dtype="float32").reshape(-1, 2**12).T
    target = empty(source.shape, source.dtype)
    copy(source, target)
    np.testing.assert_array_equal(target, source)
