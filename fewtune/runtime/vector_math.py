"""Vectors for `exp`, `tanh` and the like, where LLVM would call the C library once an element.

TVM lowers ``exp``, ``tanh``, ``erf``, ``log`` and ``pow`` on a CPU to LLVM's intrinsics or to the C
library, for which LLVM has no vectors: a GELU takes longer than the matrix product before it.
Here each becomes a polynomial (`fewtune.runtime.polynomials`), so that the loop around it is
vectorised like any sum. float32 only: TVM lowers float64 and the rest as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fewtune.runtime.polynomials import (
    error_function,
    exponential,
    hyperbolic_tangent,
    logarithm,
    power,
    type_of,
)
from fewtune.tvm_compat.operators import lower_first
from fewtune.tvm_compat.start import tvm

# Kernels of this attribute keep the C library's functions (`left_to_library`).
LIBRARY_FUNCTIONS = "fewtune.library_functions"


def register() -> None:
    """Have TVM lower these functions so on CPUs, in this process."""

    def vectors_of(function: Callable[..., Any | None]) -> Callable[[Any], Any | None]:
        return lambda call: function(*call.args) if _Use.vectors and _is_float32(call) else None

    for name, function in (
        ("exp", exponential),
        ("log", logarithm),
        ("tanh", hyperbolic_tangent),
        ("erf", error_function),
        ("pow", power),
    ):
        lower_first(name, vectors_of(function))


def left_to_library(module: tvm.IRModule) -> tvm.IRModule:
    """Mark a module's kernels: they are to call the C library, as TVM has it."""
    marked = {
        name: function.with_attr(LIBRARY_FUNCTIONS, 1)
        if isinstance(function, tvm.tirx.PrimFunc)
        else function
        for name, function in module.functions.items()
    }
    return tvm.IRModule(marked, attrs=module.attrs, global_infos=module.global_infos)


@contextmanager
def as_marked(module: tvm.IRModule) -> Iterator[None]:
    """Within the block, what is compiled has the functions that a module is marked for."""
    before = _Use.vectors
    _Use.vectors = not any(
        function.attrs is not None and LIBRARY_FUNCTIONS in function.attrs
        for function in module.functions.values()
    )
    try:
        yield
    finally:
        _Use.vectors = before


class _Use:
    """Whether this process lowers functions to vectors now: the rules see calls alone."""

    vectors = True


def _is_float32(call: Any) -> bool:
    """Whether a call gives float32, in however many lanes."""
    kind = tvm.DataType(type_of(call))
    return str(kind).startswith("float32") and "vscale" not in str(kind)
