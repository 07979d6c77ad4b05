"""Test arguments of checked kernels.

Values differ from their neighbours along every axis, so a kernel that reads the wrong element reads
another value. Sums are kept near one, so that a sigmoid or a comparison behind a product is not
saturated. Kernels in eight bits get limits, zero points and addends of the size of their bytes and
sums; `fewtune.schedule_check.check` finds the size of their scales.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd, prod, sqrt
from typing import Any

import numpy as np
import tvm_ffi

from fewtune.runtime import dot_products
from fewtune.runtime.tvm import tvm
from fewtune.task.access import shape_of

# Half a unit in the last place, relative. Types that are not here are exact.
ROUNDING = {"float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}
_BYTES = ("int8", "uint8")
_ROUNDS = ("floor", "ceil", "trunc", "round", "nearbyint")
# Ordinary integers: zero is not among them, since kernels may divide by them.
_INTEGERS = (1.0, 8.0)
# Positive floats, for kernels that compute roots or logarithms.
_POSITIVE = (0.25, 1.25)
# Zero point of unsigned bytes, and root mean square of the product of two bytes.
_ZERO_POINT, _PRODUCT = 100.0, 147.0 * 74.0
# A larger argument is a view of a table of about so many elements: 411 MB of weights take no
# memory of their own, and the table stays in the cache.
_TABLE = 2**20


@dataclass
class Parameter:
    """One argument of a kernel: what is known of it, and the range of its test values.

    Both ``is_read`` and ``is_written`` are true if neither can be seen. ``is_factor`` marks scales
    of a kernel in eight bits.
    """

    shape: tuple[int, ...]
    dtype: str
    is_read: bool
    is_written: bool
    low: float = -1.0
    high: float = 1.0
    is_factor: bool = False

    @property
    def is_float(self) -> bool:
        return self.dtype in ROUNDING


@dataclass
class Signature:
    """Parameters of an unscheduled kernel, and what decides how its outputs may differ.

    Integers are below ``most_index`` if they are indices. ``length`` is that of the longest
    reduction. ``takes_steps`` says whether the kernel rounds floats to integers.
    """

    parameters: list[Parameter]
    most_index: int | None = None
    length: int = 1
    has_floats: bool = False
    takes_steps: bool = False

    @property
    def factors(self) -> list[int]:
        """Numbers of the scales."""
        return [n for n, each in enumerate(self.parameters) if each.is_factor]


def signature(function: Any) -> Signature:
    """Analyze the parameters of an unscheduled kernel; `NotAffineError` if a shape is not known."""
    loads, stores, blocks, casts, calls = (list[Any]() for _ in range(5))
    kinds = (tvm.ir.expr.TensorLoad, tvm.tirx.BufferStore, tvm.s_tir.SBlock, tvm.tirx.Cast)
    found = zip((*kinds, tvm.ir.Call), (loads, stores, blocks, casts, calls), strict=True)
    tvm_ffi.structural_walk(function.body, [(kind, each.append) for kind, each in found])
    read = {load.source for load in loads}
    written = {store.buffer for store in stores}
    parameters = []
    for given in function.params:
        opaque = given not in read and given not in written
        # What an accumulation reads of its own output, it has written before.
        made = Parameter(
            tuple(shape_of(given)),
            str(given.dtype),
            is_read=opaque or given not in written,
            is_written=opaque or given in written,
        )
        if made.dtype in _BYTES:
            made.low, made.high = np.iinfo(made.dtype).min, np.iinfo(made.dtype).max
        elif not made.is_float:
            made.low, made.high = (0.0, 1.0) if made.dtype == "bool" else _INTEGERS
        parameters.append(made)
    types = {str(store.buffer.dtype) for store in stores} | {each.dtype for each in parameters}
    places = {each: parameters[place] for place, each in enumerate(function.params)}
    _limit_sums(places, blocks)
    if not types.isdisjoint(_BYTES) or any(map(dot_products.is_dot, calls)):
        ends = [str(each.ty.dtype) for each in casts if _rounds(each)]
        end = next((each for each in ends if each in _BYTES), "")
        for block in blocks:
            _fit_bytes(places, block, end, max(map(_length, blocks)))
        for word in (word for call in calls if dot_products.is_dot(call) for word in call.args):
            words = places.get(getattr(word, "source", None))
            if words is not None and words.dtype == "int32":
                words.low, words.high = -(2.0**31), 2.0**31 - 1
    return Signature(
        parameters,
        _most_index([*loads, *stores]),
        max(map(_length, blocks), default=1),
        has_floats=not types.isdisjoint(ROUNDING),
        takes_steps=any(map(_rounds, casts)) or any(_name(call) in _ROUNDS for call in calls),
    )


def _length(block: Any) -> int:
    """Number of elements that a block reduces to one."""
    reduced = tvm.tirx.IterVar.CommReduce
    return prod(int(a.dom.extent) for a in block.iter_vars if a.iter_type == reduced)


def _rounds(cast: Any) -> bool:
    from_float = str(cast.value.ty.dtype) in ROUNDING
    return from_float and str(cast.ty.dtype) not in ROUNDING


def _name(call: Any) -> str:
    return str(getattr(call.op, "name", "")).rpartition(".")[2]


def _most_index(accesses: list[Any]) -> int | None:
    """The least extent of an axis that is indexed by a value from memory."""
    found = []
    for access in accesses:
        buffer = access.source if hasattr(access, "source") else access.buffer
        for index, size in zip(access.indices, shape_of(buffer), strict=True):
            inner: list[Any] = []
            tvm_ffi.structural_walk(index, (tvm.ir.expr.TensorLoad, inner.append))
            if inner:
                found.append(size)
    return min(found, default=None)


def _operands(block: Any) -> Iterator[tuple[str, Any]]:
    """Buffers that arithmetic of a block reads, each with the name of the operation."""
    nodes: list[Any] = []
    kinds = [getattr(tvm.tirx, kind) for kind in ("Add", "Sub", "Mul", "Div", "Max", "Min")]
    tvm_ffi.structural_walk(block.body, [(kind, nodes.append) for kind in kinds])
    for node in nodes:
        for value in (node.b, node.a):
            while type(value).__name__ == "Cast":
                value = value.value
            if hasattr(value, "source"):
                yield type(node).__name__, value.source


def _limit_sums(places: dict[Any, Parameter], blocks: list[Any]) -> None:
    """Divide one factor of each sum of products by the root of the sum's length."""
    for block in blocks:
        factors = (
            places[each] for kind, each in _operands(block) if kind == "Mul" and each in places
        )
        factor, size = next(factors, None), _length(block) ** -0.5
        if factor is not None and factor.is_float:
            factor.low, factor.high = max(factor.low, -size), min(factor.high, size)


def _fit_bytes(places: dict[Any, Parameter], block: Any, end: str, length: int) -> None:
    """Give scales, limits, zero points and addends of a block the sizes that bytes need.

    ``end`` is the type of the bytes to which floats are rounded, ``length`` that of the sums.
    """
    points, is_sum = prod(int(axis.dom.extent) for axis in block.iter_vars), _length(block) > 1
    for kind, buffer in _operands(block):
        each = places.get(buffer)
        if each is None or prod(each.shape) >= points:
            continue
        is_one = prod(each.shape) == 1
        if each.dtype == "int32" and is_sum and kind == "Mul":
            each.low, each.high = -127, 127
        elif each.dtype == "int32" and not is_sum and not is_one and kind in ("Add", "Sub"):
            each.high = _PRODUCT * sqrt(length)
            each.low = -each.high
        elif not each.is_float or is_sum:
            continue
        elif kind in ("Mul", "Div"):
            each.low, each.high, each.is_factor = 0.5, 1.5, True
        elif is_one and end and kind in ("Max", "Min"):
            limits = np.iinfo(end)
            each.low = each.high = limits.min if kind == "Max" else limits.max
        elif is_one and end == "uint8":
            each.low = each.high = _ZERO_POINT


def drawn(given: Signature, place: int, *, positive: bool, size: float = 1.0) -> np.ndarray:
    """The values of one argument, each of which may stand for several elements; read only.

    Each ``place`` has different values. If ``positive``, ordinary floats are above zero; ``size``
    multiplies the values.
    """
    parameter = given.parameters[place]
    dtype, count = np.dtype(parameter.dtype), prod(parameter.shape)
    random = np.random.default_rng([place, 7])
    low, high = parameter.low, parameter.high
    if given.most_index is not None and dtype.kind in "iu" and dtype.itemsize >= 4:
        return _indices(count, given.most_index, place).astype(dtype).reshape(parameter.shape)
    steps = _steps(parameter.shape)
    length = sum((n - 1) * step for n, step in zip(parameter.shape, steps, strict=True)) + 1
    if dtype.kind == "f":
        if positive and low == -high:
            low, high = _POSITIVE[0] * high, _POSITIVE[1] * high
        table = random.random(length, "float32") * np.float32(high - low) + np.float32(low)
        table = (table * np.float32(size)).astype(dtype)
    else:
        table = random.integers(int(low), int(high), length, endpoint=True).astype(dtype)
    strides = [step * dtype.itemsize for step in steps]
    return np.lib.stride_tricks.as_strided(table, parameter.shape, strides, writeable=False)


def _steps(shape: Sequence[int]) -> list[int]:
    """Distances of neighbors on each axis in the table of an argument's values.

    In a small table, all elements are different. In a large one, equal elements are far from each
    other; distances are odd, so that few tiles' extents lead from one to the other.
    """
    whole = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    if prod(shape) <= _TABLE:
        return whole
    inner = [max(1, len(shape) - 1 - axis) for axis in range(len(shape))]
    room = [_TABLE // (extent * each) for extent, each in zip(shape, inner, strict=True)]
    return [min(step, most) | 1 for step, most in zip(whole, room, strict=True)]


def _indices(count: int, most: int, place: int) -> np.ndarray:
    """Indices that are all different, as far as there are so many.

    If two were equal, a kernel that scatters could write either element last.
    """
    step = 7919 + 2 * place
    while gcd(step, most) > 1:
        step += 1
    return np.arange(max(1, count), dtype=np.int64)[:count] * step % most
