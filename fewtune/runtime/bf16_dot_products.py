"""Dot products of two bfloat16 numbers as one operator of TensorIR: AVX-512 BF16's ``vdpbf16ps``.

A word of 32 bits holds two bfloat16 numbers, the upper halves of float32. ``dot2`` multiplies
those of one word with those of another and sums them in float32, in every lane of a vector; as
`fewtune.runtime.dot_products` does with four bytes.

TVM's code generator for LLVM does not support bfloat16. So functions in LLVM's own language contain
the instruction. TVM links them into a kernel's module, and LLVM inlines them.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

FEATURES = ("avx512bf16", "avx512vl", "avx512bw")
NAME = "tirx.dot2_bf16"
_LEVEL = 120
_SUM, _WORD = "float32", "int32"
_MOST_LANES, _LEAST_LANES = 16, 4
_HIGH_HALF = -65536  # 0xffff0000 as int32
_FUNCTION = "fewtune_dot2_bf16_{}"
_LLVM = """
declare <{lanes} x float> @llvm.x86.avx512bf16.dpbf16ps.{bits}(
  <{lanes} x float>, <{halves} x bfloat>, <{halves} x bfloat>)
define linkonce_odr <{lanes} x float> @{name}(
  <{lanes} x float> %sum, <{lanes} x i32> %first, <{lanes} x i32> %second) alwaysinline nounwind {{
  %left = bitcast <{lanes} x i32> %first to <{halves} x bfloat>
  %right = bitcast <{lanes} x i32> %second to <{halves} x bfloat>
  %result = call <{lanes} x float> @llvm.x86.avx512bf16.dpbf16ps.{bits}(
    <{lanes} x float> %sum, <{halves} x bfloat> %left, <{halves} x bfloat> %right)
  ret <{lanes} x float> %result
}}
"""


def dot2(first: Any, second: Any) -> Any:
    """The dot product of two bfloat16 numbers with two others, each two in an int32, as float32."""
    return tirx.call_intrin("float32", NAME, first, second)


def rounding(value: Any) -> Any:
    """The bits of a float32 expression rounded to bfloat16, as an uint16 expression."""

    def number(of: int) -> Any:
        return tirx.const(of, "uint32")

    bits = tirx.reinterpret("uint32", value)
    found = (bits + number(0x7FFF) + ((bits >> number(16)) & number(1))) >> number(16)
    is_number = (bits & number(0x7FFFFFFF)) <= number(0x7F800000)
    return tirx.Select(is_number, found, number(0x7FC0)).astype("uint16")


def register() -> None:
    """Make the operator known to TVM, once in each process."""
    # TVM has no public way to register an operator.
    tvm.ir._ffi_api.RegisterOp(NAME, "Dot product of two bfloat16 numbers.")
    tvm.ir.register_op_attr(NAME, "TVectorizable", True)
    tvm.ir.register_op_attr(NAME, "TCallEffectKind", int(tirx.CallEffectKind.Pure.value))
    tvm.ir.register_op_attr(NAME, "TScriptPrinterName", NAME.removeprefix("tirx."))

    def instruction(call: Any) -> Any:
        first, second, *sums = call.args
        lanes = int(tvm.DataType(str(first.ty.dtype)).lanes)
        zero = tirx.const(0.0, "float32")
        start = zero if lanes == 1 else tirx.Broadcast(zero, lanes)
        return lowered(sums[0] if sums else start, first, second, lanes)

    tirx.op.register_intrin_lowering(NAME, "llvm", f=instruction, level=_LEVEL)


def lowered(start: Any, first: Any, second: Any, lanes: int) -> Any:
    """A dot product of any number of lanes: by halves, down to what the instruction has."""
    if lanes & (lanes - 1) or lanes < _LEAST_LANES:
        return _plain(start, first, second, lanes)
    if lanes <= _MOST_LANES:
        name = _FUNCTION.format(lanes)
        return tirx.call_extern(_type("float32", lanes), name, start, first, second)
    half = lanes // 2

    def part(which: str, kind: str, vector: Any) -> Any:
        return tirx.call_intrin(_type(kind, half), f"tirx.vector{which}", vector)

    low, high = (
        lowered(part(side, _SUM, start), part(side, _WORD, first), part(side, _WORD, second), half)
        for side in ("low", "high")
    )
    return tirx.call_intrin(_type(_SUM, lanes), "tirx.vectorcombine", low, high)


def with_functions(function: Any) -> Any:
    """A kernel that brings the functions along which `lowered` calls."""
    text = "".join(
        _LLVM.format(name=_FUNCTION.format(lanes), lanes=lanes, halves=2 * lanes, bits=32 * lanes)
        for lanes in (4, 8, 16)
    )
    key = "pragma_import_llvm"
    body = tirx.AttrStmt(tirx.const(0, "int32"), key, tvm.ir.StringImm(text), function.body)
    return function.with_body(body)


def _plain(start: Any, first: Any, second: Any, lanes: int) -> Any:
    def constant(value: int) -> Any:
        number = tirx.const(value, "int32")
        return number if lanes == 1 else tirx.Broadcast(number, lanes)

    def halves(word: Any) -> tuple[Any, Any]:
        kind = _type("float32", lanes)
        low, high = word << constant(16), word & constant(_HIGH_HALF)
        return tirx.reinterpret(kind, low), tirx.reinterpret(kind, high)

    for left, right in zip(halves(first), halves(second), strict=True):
        start = start + left * right
    return start


def _type(kind: str, lanes: int) -> str:
    return kind if lanes == 1 else f"{kind}x{lanes}"
