"""Vectors for `exp`, `tanh` and the like, where LLVM would call the C library once an element.

TVM lowers ``exp``, ``tanh``, ``erf``, ``log`` and ``pow`` on a CPU to LLVM's intrinsics or to the C
library, for which LLVM has no vectors: a GELU takes longer than the matrix product before it.
Here each becomes a polynomial (`fewtune.runtime.polynomials`), so that the loop around it is
vectorised like any sum. float32 only: TVM lowers float64 and the rest as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import tvm  # tvm_runtime registers what is here: it cannot be imported from here

from fewtune.runtime.polynomials import (
    error_function,
    exponential,
    hyperbolic_tangent,
    logarithm,
    power,
    type_of,
)

# Kernels of this attribute keep the C library's functions (`left_to_library`).
LIBRARY_FUNCTIONS = "fewtune.library_functions"
# Above TVM's own rules, which are at 10 and 99.
_LEVEL = 120


def _of_argument(function: Callable[[Any], Any], call: Any) -> Any:
    return function(call.args[0])


def register() -> None:
    """Have TVM lower these functions so on CPUs, in this process."""
    for name, function in (
        ("exp", exponential),
        ("log", logarithm),
        ("tanh", hyperbolic_tangent),
        ("erf", error_function),
    ):
        _register(name, partial(_of_argument, function))
    # Without it, TVM does not vectorise the loop around it.
    tvm.ir.register_op_attr("tirx.erf", "TVectorizable", True)
    _register("pow", lambda call: power(*call.args))


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


def _register(name: str, rule: Callable[[Any], Any | None]) -> None:
    """Lower an operator by a rule where that knows how, else as TVM did."""
    theirs = tvm.ir.Op.get(f"tirx.{name}").get_attr("llvm.FLowerIntrinsic")
    if theirs is None:
        theirs = tvm.ir.Op.get(f"tirx.{name}").get_attr("default.FLowerIntrinsic")

    def lowered(call: Any) -> Any:
        found = rule(call) if _Use.vectors and _is_float(call) else None
        if found is not None:
            return found
        return _by_element(call, theirs) if name == "erf" else theirs(call)

    tvm.tirx.register_intrin_lowering(f"tirx.{name}", target="llvm", f=lowered, level=_LEVEL)


def _by_element(call: Any, lower: Callable[[Any], Any]) -> Any:
    """Lower a call of several lanes lane by lane: the C library knows no vectors."""
    lanes = tvm.DataType(type_of(call)).lanes
    if lanes == 1:
        return lower(call)
    element = type_of(call).rsplit("x", 1)[0]
    parts = [
        lower(tvm.tirx.call_intrin(element, call.op, tvm.tirx.Shuffle([call.args[0]], [lane])))
        for lane in range(lanes)
    ]
    return tvm.tirx.Shuffle(parts, list(range(lanes)))


def _is_float(call: Any) -> bool:
    """Whether a call gives float32, in however many lanes."""
    kind = tvm.DataType(type_of(call))
    return str(kind).startswith("float32") and "vscale" not in str(kind)
