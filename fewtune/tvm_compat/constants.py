"""Constants of Relax functions."""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np
from tvm import ir


def is_constant(value: Any) -> TypeGuard[ir.GenericConst]:
    """Whether an expression of Relax is a constant.

    The class has another name in other versions of TVM.
    Test: tests/model/converters/test_elementwise.py::test_a_clip_by_constants_of_any_rank
    """
    return isinstance(value, ir.GenericConst)


def array_of(value: Any) -> np.ndarray | None:
    """A copy of a constant's array; None of another expression.

    Test: tests/model/converters/test_elementwise.py::test_a_clip_by_constants_of_any_rank
    """
    return value.value.numpy() if is_constant(value) else None


def known_array(constant: Any) -> np.ndarray:
    """A copy of the array of an expression that is a constant.

    Test: tests/model/converters/test_elementwise.py::test_a_clip_by_constants_of_any_rank
    """
    array: np.ndarray = constant.value.numpy()
    return array
