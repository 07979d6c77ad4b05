"""Tensors that share memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def view_of(tensor: Any, shape: Sequence[int], dtype: str | None = None) -> Any:
    """A tensor's memory in another shape and type, not copied: TVM's method is private.

    Test: tests/tvm_compat/test_tensors.py::test_a_view_shares_memory
    """
    return tensor._create_view(tuple(shape), *([] if dtype is None else [dtype]))


def flat(tensor: Any) -> Any:
    """A tensor's elements along one axis, not copied.

    Test: tests/tvm_compat/test_tensors.py::test_a_view_shares_memory
    """
    return view_of(tensor, [math.prod(int(extent) for extent in tensor.shape)])
