"""NaN and infinities as onnxruntime has them, where TVM's kernels lose them.

TVM lowers ``max(a, b)`` to ``a > b ? a : b``, one instruction on x86, which gives ``b`` where one
of the two is NaN. It writes constants second: ``relu(NaN)`` is 0, and a NaN that comes up anywhere
in a network leaves it as a number. Here constants come first, which costs nothing; of two values
that are no constants the first is looked at. A maximum over elements begins with the lowest number,
so that of elements that are all -inf that number comes out: here it begins with -inf.

NaN among the elements of a maximum over an axis or a window is passed over: what was found before
stands second, or a number after the NaN would take its place. onnxruntime (1.31) mostly does the
same; where it works in vectors, it depends on the order.

All is done once the kernels are lowered: structures of tasks, and what is kept by them, stay as
they are.
"""

from __future__ import annotations

import math
from typing import Any

import tvm_ffi

from fewtune.runtime.pipeline import run_last
from fewtune.tvm_compat.start import tvm

tirx = tvm.tirx

_EXTREMES = (tirx.Max, tirx.Min)
_COMPARISONS = (tirx.GT, tirx.LT)
_CHOICE = "if_then_else"


def register() -> None:
    """Have TVM compile kernels so on CPUs, in this process."""
    run_last(_special_values)


@tirx.transform.prim_func_pass(opt_level=0)
def _special_values(function: Any, _module: Any, _context: Any) -> Any:
    function = _with_places(function)
    found: list[Any] = []

    def seen(node: Any) -> None:
        if _is_float(node):
            found.append(node)

    tvm_ffi.structural_walk(function.body, [(_EXTREMES, seen)], order="post")
    if not found:
        return function
    reduced: list[tuple[Any, type]] = []

    def stored(store: Any) -> None:
        value = store.value
        if isinstance(value, _EXTREMES) and _of_itself(value, store.buffer):
            reduced.append((store.buffer, type(value)))

    if any(_is_load(operand) for node in found for operand in (node.a, node.b)):
        tvm_ffi.structural_walk(function.body, [(tirx.BufferStore, stored)], order="post")
    body = function.body
    if reduced:
        body = tvm_ffi.structural_map(body, (tirx.BufferStore, _Beginnings(reduced)), order="post")
        kinds = {kind for _, kind in reduced}
        body = tvm_ffi.structural_map(body, (tvm.ir.Call, _Borders(kinds)), order="post")
    buffers = [buffer for buffer, _ in reduced]

    def ordered(node: Any) -> Any:
        if not _is_float(node):
            return node
        if any(_is_load_of(node.a, buffer) for buffer in buffers):
            return type(node)(node.b, node.a)
        is_reduction = any(_is_load_of(node.b, buffer) for buffer in buffers)
        return node if is_reduction else _with_nan(node)

    return function.with_body(tvm_ffi.structural_map(body, (_EXTREMES, ordered), order="post"))


def _with_places(function: Any) -> Any:
    """Let an ArgMax or ArgMin keep what it has found where an element is NaN.

    It asks whether that is larger, and takes the element where not, as it is not than NaN.
    """
    begun: list[Any] = []
    found: list[Any] = []

    def stored(store: Any) -> None:
        if any(_infinite(store.value, kind) is not None for kind in _EXTREMES):
            begun.append(store.buffer)

    def seen(choice: Any) -> None:
        parts = _parts_of_choice(choice)
        if parts is None or not isinstance(parts[0], _COMPARISONS):
            return
        asked, kept, other = parts
        for mine, its in ((asked.a, asked.b), (asked.b, asked.a)):
            if (
                any(_is_load_of(mine, buffer) for buffer in begun)
                and tvm_ffi.structural_equal(mine, kept)
                and tvm_ffi.structural_equal(its, other)
            ):
                found.append(mine.source)

    tvm_ffi.structural_walk(function.body, [(tirx.BufferStore, stored)], order="post")
    if begun:
        tvm_ffi.structural_walk(function.body, [((tirx.Select, tvm.ir.Call), seen)], order="post")
    if not found:
        return function

    def turned(asked: Any) -> Any:
        if not any(_is_load_of(s, buffer) for s in (asked.a, asked.b) for buffer in found):
            return asked
        opposite = tirx.LE if isinstance(asked, tirx.GT) else tirx.GE
        return tirx.Not(opposite(asked.a, asked.b))

    return function.with_body(
        tvm_ffi.structural_map(function.body, (_COMPARISONS, turned), order="post")
    )


def _parts_of_choice(choice: Any) -> tuple[Any, Any, Any] | None:
    """Condition and both values."""
    if isinstance(choice, tirx.Select):
        return choice.condition, choice.true_value, choice.false_value
    return tuple(choice.args) if getattr(choice.op, "name", "").endswith(_CHOICE) else None


class _Beginnings:
    """Lets reductions begin with an infinity."""

    def __init__(self, reduced: list[tuple[Any, type]]) -> None:
        self._reduced = reduced

    def __call__(self, store: Any) -> Any:
        for buffer, kind in self._reduced:
            if store.buffer.same_as(buffer) and (start := _infinite(store.value, kind)) is not None:
                return tirx.BufferStore(store.buffer, start, store.indices)
        return store


class _Borders:
    """Lets what pads the windows of a reduction be an infinity."""

    def __init__(self, kinds: set[type]) -> None:
        self._kinds = kinds

    def __call__(self, call: Any) -> Any:
        if not getattr(call.op, "name", "").endswith(_CHOICE):
            return call
        condition, inside, border = call.args
        if _loads(condition):
            # No border: a mask among the values, with a number of the model's own.
            return call
        for kind in self._kinds:
            if (start := _infinite(border, kind)) is not None:
                return tirx.call_intrin(str(call.ty.dtype), call.op, condition, inside, start)
        return call


def _infinite(value: Any, kind: type) -> Any | None:
    """The infinity in the place of the largest or least number; None where it is another."""
    if isinstance(value, tirx.Broadcast):
        found = _infinite(value.value, kind)
        return None if found is None else tirx.Broadcast(found, value.lanes)
    if not isinstance(value, tirx.FloatImm):
        return None
    dtype = str(value.ty.dtype)
    limit = tirx.min_value(dtype) if kind is tirx.Max else tirx.max_value(dtype)
    if float(value.value) != float(limit.value):
        return None
    return tirx.FloatImm(dtype, -math.inf if kind is tirx.Max else math.inf)


def _with_nan(node: Any) -> Any:
    """A maximum or minimum that is NaN where either operand is."""
    first, second = node.a, node.b
    if _is_bound(second) and not _is_bound(first):
        return type(node)(second, first)
    if _is_bound(first) or _is_multiple(second, first):
        return node
    if _is_multiple(first, second):
        return type(node)(second, first)
    return tirx.Select(tirx.EQ(first, first), node, first)


def _is_multiple(value: Any, of: Any) -> bool:
    """Whether a value is NaN wherever another is, being a multiple: a leaky ReLU's."""
    return isinstance(value, tirx.Mul) and any(
        tvm_ffi.structural_equal(factor, of) for factor in (value.a, value.b)
    )


def _is_bound(value: Any) -> bool:
    """Whether a value is one number for all elements, in every lane: a bound of Clip, say."""
    if isinstance(value, tirx.Broadcast):
        return _is_bound(value.value)
    if _is_load(value):
        return all(isinstance(each, tirx.IntImm) and each == 1 for each in value.source.shape)
    return isinstance(value, tirx.FloatImm) and not math.isnan(value.value)


def _of_itself(node: Any, buffer: Any) -> bool:
    """Whether one operand is what the buffer holds."""
    return any(_is_load_of(each, buffer) for each in (node.a, node.b))


def _is_load_of(value: Any, buffer: Any) -> bool:
    return _is_load(value) and value.source.same_as(buffer)


def _loads(value: Any) -> bool:
    found = False

    def visit(_load: Any) -> None:
        nonlocal found
        found = True

    tvm_ffi.structural_walk(value, [(tvm.ir.TensorLoad, visit)], order="post")
    return found


def _is_load(value: Any) -> bool:
    return isinstance(value, tvm.ir.TensorLoad)


def _is_float(node: Any) -> bool:
    return str(node.ty.dtype).startswith("float")
