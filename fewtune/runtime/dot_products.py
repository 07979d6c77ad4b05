"""Dot products of four bytes as one operator of TensorIR, lowered to the processor's instruction.

A word of 32 bits holds four bytes. ``dot4`` multiplies the four unsigned bytes of one word with the
four signed bytes of another and sums them in int32: what AVX-512 VNNI's ``vpdpbusd`` and AArch64's
``usdot`` compute for every lane of a vector. A product of matrices of bytes is, in words, a product
like any other: the same loops, tiles, rules and features serve it, only its multiplication is this
operator. TVM's own way, tensorisation, would give it a design space of its own, which no trace of
another kernel fits.

No form saturates: where the processor lacks the instruction, bytes are widened to 16 bits first
(``vpmaddwd``), since ``vpmaddubsw`` adds two products in 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tvm_ffi

from fewtune.runtime.special_values import run_last
from fewtune.tvm_compat.operators import register_operator
from fewtune.tvm_compat.start import tvm

tirx = tvm.tirx

VNNI, AVX_VNNI, MADD = "vnni", "avx_vnni", "madd"
AVX2_MADD, USDOT, SDOT, PLAIN = "avx2_madd", "usdot", "sdot", "plain"
# Those that are one instruction, accumulator and all.
AT_ONCE = (VNNI, AVX_VNNI, USDOT)
_NAME = "tirx.dot4_{}"
_BYTES, _LEAST_LANES = 4, 4
_HIGH_BITS = -2139062144  # 0x80808080 as int32
_LOW_BYTES = 0x00FF00FF
# The best first: a form, the processor features that it needs, and an instruction's int32 lanes.
FORMS = (
    (VNNI, ("avx512vnni", "avx512bw"), 16),
    (AVX_VNNI, ("avxvnni",), 8),
    (MADD, ("avx512bw",), 16),
    (AVX2_MADD, ("avx2",), 8),
    (USDOT, ("i8mm",), 4),
    (SDOT, ("dotprod",), 4),
)


def form_of(has: Callable[[str], bool]) -> str:
    """The fastest form that a processor has.

    Parameters
    ----------
    has : callable
        Whether LLVM knows the target to have a feature.
    """
    return next((form for form, features, _ in FORMS if all(map(has, features))), PLAIN)


def dot4(form: str, unsigned: Any, signed: Any) -> Any:
    """The dot product of four unsigned bytes with four signed ones, each four in an int32.

    Parameters
    ----------
    form : str
        From `form_of`.
    unsigned, signed : PrimExpr
        int32; the first byte is in the lowest bits.
    """
    return tirx.call_intrin("int32", _NAME.format(form), unsigned, signed)


def register() -> None:
    """Make the operators known to TVM, once in each process."""

    def lowered(form: str, call: Any) -> Any:
        unsigned, signed, *sums = call.args
        lanes = int(tvm.DataType(str(unsigned.ty.dtype)).lanes)
        start = sums[0] if sums else _constant(0, lanes)
        return _dot(form, start, unsigned, signed, lanes)

    for form in (*(form for form, _, _ in FORMS), PLAIN):
        meaning = "Dot product of four bytes."
        register_operator(_NAME.format(form), meaning, partial(lowered, form))
    run_last(_joined_sums)


@tirx.transform.prim_func_pass(opt_level=0)
def _joined_sums(function: Any, _module: Any, _context: Any) -> Any:
    """Give the instruction the sum that it adds to.

    A block's body is a sum and a dot product. LLVM does not join the two: it would clear a register
    for each instruction and add afterwards.
    """
    if not any_dot(function.body):
        return function

    def joined(node: Any) -> Any:
        for total, product in ((node.a, node.b), (node.b, node.a)):
            if is_dot(product) and len(product.args) == 2:
                kind = str(total.ty.dtype)
                return tirx.call_intrin(kind, product.op, *product.args, total)
        return node

    body = tvm_ffi.structural_map(function.body, (tirx.Add, joined), order="post")
    return function.with_body(body)


def any_dot(statement: Any) -> bool:
    """Whether a statement has one of these operators in it."""
    calls: list[Any] = []
    tvm_ffi.structural_walk(statement, [(tvm.ir.Call, calls.append)], order="post")
    return any(map(is_dot, calls))


def is_dot(node: Any) -> bool:
    """Whether an expression is one of these operators."""
    name = getattr(getattr(node, "op", None), "name", "")
    return name.startswith(_NAME.format(""))


def _constant(value: int, lanes: int) -> Any:
    number = tirx.const(value, "int32")
    return number if lanes == 1 else tirx.Broadcast(number, lanes)


def _type(lanes: int) -> str:
    return "int32" if lanes == 1 else f"int32x{lanes}"


def _dot(form: str, start: Any, unsigned: Any, signed: Any, lanes: int) -> Any:
    """A dot product of any number of lanes: by halves, down to what an instruction has."""
    most = next((each for name, _, each in FORMS if name == form), lanes)
    even = lanes & (lanes - 1) == 0
    if lanes > most and even:
        halves = zip(*(_halves(each, lanes) for each in (start, unsigned, signed)), strict=True)
        low, high = (_dot(form, a, b, c, lanes // 2) for a, b, c in halves)
        return tirx.call_intrin(_type(lanes), "tirx.vectorcombine", low, high)
    if form == PLAIN or not even or lanes < _LEAST_LANES:
        return _plain(start, unsigned, signed, lanes)
    if form in (MADD, AVX2_MADD):
        return _madd(start, unsigned, signed, lanes)
    if form == SDOT:
        return _sdot(start, unsigned, signed, lanes)
    intrinsic = "aarch64.neon.usdot.v4i32.v16i8"
    if form != USDOT:
        intrinsic = f"x86.avx512.vpdpbusd.{32 * lanes}"
    return _of_bytes(intrinsic, start, unsigned, signed, lanes)


def _of_bytes(intrinsic: str, start: Any, first: Any, second: Any, lanes: int) -> Any:
    """LLVM's intrinsic on words that are vectors of bytes."""
    kind = f"int8x{_BYTES * lanes}"
    given = (tirx.reinterpret(kind, first), tirx.reinterpret(kind, second))
    return tirx.call_llvm_pure_intrin(_type(lanes), f"llvm.{intrinsic}", start, *given)


def _halves(vector: Any, lanes: int) -> list[Any]:
    half = _type(lanes // 2)
    return [tirx.call_intrin(half, f"tirx.vector{part}", vector) for part in ("low", "high")]


def _madd(start: Any, unsigned: Any, signed: Any, lanes: int) -> Any:
    """Even bytes and odd bytes, each widened to 16 bits within the word, then two products."""
    intrinsic = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}[lanes]
    halves = f"int16x{2 * lanes}"
    mask, byte = _constant(_LOW_BYTES, lanes), tirx.Broadcast(tirx.const(8, "int16"), 2 * lanes)
    wide = tirx.reinterpret(halves, signed)
    pairs = (
        (unsigned & mask, (wide << byte) >> byte),
        ((unsigned >> _constant(8, lanes)) & mask, wide >> byte),
    )
    for left, right in pairs:
        start = start + tirx.call_llvm_pure_intrin(
            _type(lanes), f"llvm.x86.{intrinsic}", tirx.reinterpret(halves, left), right
        )
    return start


def _sdot(start: Any, unsigned: Any, signed: Any, lanes: int) -> Any:
    """Both operands signed: the first less 128, and 128 times the second's sum added again."""
    high, name = _constant(_HIGH_BITS, lanes), "aarch64.neon.sdot.v4i32.v16i8"
    less = _of_bytes(name, start, unsigned ^ high, signed, lanes)
    return less - _of_bytes(name, _constant(0, lanes), high, signed, lanes)


def _plain(start: Any, unsigned: Any, signed: Any, lanes: int) -> Any:
    for place in range(_BYTES):
        up, down = _constant(24 - 8 * place, lanes), _constant(24, lanes)
        first = (unsigned >> _constant(8 * place, lanes)) & _constant(255, lanes)
        start = start + first * ((signed << up) >> down)
    return start
