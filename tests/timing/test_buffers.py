"""Buffers of measured kernels: filled, held from task to task, and filled anew where written."""

from typing import Any

import numpy as np
import pytest

from fewtune.runtime.tvm import tvm
from fewtune.timing.timer import Buffers, filler

SMALL = [([2, 3], "float32"), ([3, 4], "float32")]
LARGE = [([2, 3], "float32"), ([5, 4], "float32")]


class Counted:
    """Fills with ones, and says how many elements it filled."""

    def __init__(self) -> None:
        self.elements: list[int] = []

    def __call__(self, buffer: Any) -> None:
        array = np.ones(tuple(buffer.shape), str(buffer.dtype))
        self.elements.append(array.size)
        buffer.copyfrom(array)


def made(fill: Any) -> Buffers:
    return Buffers(tvm.cpu(), fill)


@pytest.mark.parametrize(
    ("shape", "dtype"), [((3, 70_000), "float32"), ((5,), "float32"), ((3, 100), "int32")]
)
def test_buffers_are_filled_to_the_end(shape, dtype):
    buffer = tvm.runtime.empty(shape, dtype)
    buffer.copyfrom(np.zeros(shape, dtype))
    filler(on_host=True)(buffer)
    values = buffer.numpy().reshape(-1)
    assert values[-1] != 0
    assert len(np.unique(values)) > 1


def test_only_what_may_have_been_written_or_is_larger_is_filled_again():
    fill = Counted()
    buffers = made(fill)
    buffers.arguments(LARGE, [(2, 3), (5, 4)], [1])
    fill.elements.clear()
    # The weights are those of before, the first of them.
    buffers.forget()
    buffers.arguments(SMALL, [(2, 3), (3, 4)], [1])
    assert fill.elements == [6]
    # Here the second is written, not the first: its next user finds it filled anew.
    fill.elements.clear()
    buffers.arguments([([6], "float32"), ([12], "float32")], [(6,), (12,)], [0])
    buffers.arguments(LARGE, [(2, 3), (5, 4)], [1])
    assert fill.elements == [6, 20]
