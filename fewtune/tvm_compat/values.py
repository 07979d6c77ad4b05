"""Values of TVM: constants, tensors, registered functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import numpy as np
from tvm import ir

from fewtune.tvm_compat.start import tvm


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


def set_function(name: str, function: Callable[..., Any]) -> None:
    """Register a function of ours under a name, in place of an earlier one.

    TVM's time evaluator and virtual machine call Python by such names only.

    Test: tests/tvm_compat/test_functions.py::test_the_last_function_of_a_name_is_called
    """
    tvm.register_global_func(name, function, override=True)


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
