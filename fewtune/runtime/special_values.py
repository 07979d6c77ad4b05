"""NaN and infinities as onnxruntime has them, where TVM's kernels lose them.

TVM lowers ``max(a, b)`` to ``a > b ? a : b``, one instruction on x86, which gives ``b`` where one
of the two is NaN. It writes constants second: ``relu(NaN)`` is 0, and a NaN that comes up anywhere
in a network leaves it as a number. Here constants come first, which costs nothing; of two values
that are no constants the first is looked at. A maximum over elements begins with the lowest number,
so that of elements that are all -inf that number comes out: here it begins with -inf. NaN among the
elements of a maximum over an axis or a window is passed over.

All is done once the kernels are lowered: structures of tasks, and what is kept by them, stay as
they are.
"""

from __future__ import annotations

import math
from typing import Any

import tvm_ffi

from fewtune.runtime.vector_math import is_at_hand, let
from fewtune.tvm_compat.start import tvm

# Its name among TVM's pipelines.
PIPELINE = "fewtune"
_passes: list[Any] = []


def run_last(ours: Any) -> None:
    """Run a pass on every kernel for a CPU; by then nothing simplifies expressions any more."""
    _passes.append(ours)


def _extended() -> Any:
    pipeline, host, device = tvm.tirx.get_tir_pipeline("s_tir")
    return pipeline, lambda: tvm.transform.Sequential([*_passes, host()]), device


tvm.tirx.compilation_pipeline.register_tir_pipeline(PIPELINE, _extended)


tirx = tvm.tirx
_EXTREMES = (tirx.Max, tirx.Min)


@tirx.transform.prim_func_pass(opt_level=0)
def _special_values(function: Any, _module: Any, _context: Any) -> Any:
    # Buffers that hold a maximum or minimum over elements, with its kind.
    reduced: list[tuple[Any, type]] = []

    def seen(store: Any) -> None:
        value, buffer = store.value, store.buffer
        if isinstance(value, _EXTREMES) and _is_float(value):
            reduced.extend(
                (buffer, type(value)) for each in (value.a, value.b) if _is_load_of(each, buffer)
            )

    def begun(store: Any) -> Any:
        for buffer, kind in reduced:
            if store.buffer.same_as(buffer) and (start := _infinite(store.value, kind)) is not None:
                return tirx.BufferStore(store.buffer, start, store.indices)
        return store

    def ordered(node: Any) -> Any:
        if not _is_float(node):
            return node
        if any(_is_load_of(node.a, buffer) for buffer, _ in reduced):
            # A number after a NaN would take the place of what was found before.
            return type(node)(node.b, node.a)
        is_reduction = any(_is_load_of(node.b, buffer) for buffer, _ in reduced)
        return node if is_reduction else _with_nan(node)

    tvm_ffi.structural_walk(function.body, [(tirx.BufferStore, seen)], order="post")
    body = function.body
    if reduced:
        body = tvm_ffi.structural_map(body, (tirx.BufferStore, begun), order="post")
    return function.with_body(tvm_ffi.structural_map(body, (_EXTREMES, ordered), order="post"))


run_last(_special_values)


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
    if is_at_hand(first):
        return tirx.Select(tirx.EQ(first, first), node, first)
    # Named three times: of twelve maxima in each other the innermost would stand there 3^12 times.
    return let(first, lambda x: tirx.Select(tirx.EQ(x, x), type(node)(x, second), x))


def _is_multiple(value: Any, of: Any) -> bool:
    """Whether a value is NaN wherever another is, being a multiple: a leaky ReLU's."""
    return isinstance(value, tirx.Mul) and any(
        tvm_ffi.structural_equal(factor, of) for factor in (value.a, value.b)
    )


def _is_bound(value: Any) -> bool:
    """Whether a value is one number for all elements, in every lane: a bound of Clip, say."""
    if isinstance(value, tirx.Broadcast):
        return _is_bound(value.value)
    if isinstance(value, tvm.ir.TensorLoad):
        return all(isinstance(each, tirx.IntImm) and each == 1 for each in value.source.shape)
    return isinstance(value, tirx.FloatImm) and not math.isnan(value.value)


def _is_load_of(value: Any, buffer: Any) -> bool:
    return isinstance(value, tvm.ir.TensorLoad) and value.source.same_as(buffer)


def _is_float(node: Any) -> bool:
    return str(node.ty.dtype).startswith("float")
