"""Operators of TensorIR: new ones, and other lowerings of TVM's own on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fewtune.tvm_compat.start import tvm

# Above TVM's own rules, which are at 10 and 99.
_LEVEL = 120


def register_operator(name: str, meaning: str, lower: Callable[[Any], Any]) -> None:
    """Make a pure operator that is vectorized, and lowered for LLVM by a function of ours.

    TVM has no public way to register an operator.

    Test: tests/runtime/test_dot_products.py::test_no_form_saturates
    """
    tvm.ir._ffi_api.RegisterOp(name, meaning)
    tvm.ir.register_op_attr(name, "TVectorizable", True)
    tvm.ir.register_op_attr(name, "TCallEffectKind", int(tvm.tirx.CallEffectKind.Pure.value))
    tvm.ir.register_op_attr(name, "TScriptPrinterName", name.removeprefix("tirx."))
    tvm.tirx.op.register_intrin_lowering(name, "llvm", f=lower, level=_LEVEL)


def lower_first(name: str, rule: Callable[[Any], Any | None]) -> None:
    """Lower an operator of TVM by a rule; as TVM does where the rule gives None.

    TVM calls the C library for ``exp``, ``tanh``, ``erf``, ``log`` and ``pow``, once an element.
    It does not vectorize a loop around ``erf`` at all: lanes are lowered one by one.

    Test: tests/runtime/test_vector_math.py::test_nothing_is_called_once_an_element
    """
    operator = tvm.ir.Op.get(f"tirx.{name}")
    theirs = operator.get_attr("llvm.FLowerIntrinsic")
    theirs = theirs or operator.get_attr("default.FLowerIntrinsic")
    is_scalar = not operator.get_attr("TVectorizable")

    def lowered(call: Any) -> Any:
        found = rule(call)
        if found is not None:
            return found
        return _by_lane(call, theirs) if is_scalar else theirs(call)

    if is_scalar:
        tvm.ir.register_op_attr(operator.name, "TVectorizable", True)
    tvm.tirx.register_intrin_lowering(operator.name, target="llvm", f=lowered, level=_LEVEL)


def _by_lane(call: Any, lower: Callable[[Any], Any]) -> Any:
    kind = str(call.ty)
    lanes = tvm.DataType(kind).lanes
    if lanes == 1:
        return lower(call)
    element = kind.rsplit("x", 1)[0]
    parts = [
        lower(tvm.tirx.call_intrin(element, call.op, tvm.tirx.Shuffle([call.args[0]], [lane])))
        for lane in range(lanes)
    ]
    return tvm.tirx.Shuffle(parts, list(range(lanes)))
