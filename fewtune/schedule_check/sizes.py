"""Sizes of the test arguments of quantised kernels, for which ordinary values find no fault.

A kernel in eight bits multiplies sums by a scale, rounds, and clips the result to two limits. If
scale and limits are near one, as other arguments are, it writes only zeros for any sums. Here each
scale, limit and addend gets a size that keeps results inside the range of their bytes. To find it,
the typical size of each value is propagated through the kernel's blocks.
"""

from __future__ import annotations

from math import prod, sqrt
from typing import Any, NamedTuple

import numpy as np
import tvm_ffi

from fewtune.runtime import dot_products
from fewtune.runtime.tvm import tvm
from fewtune.schedule.access import NotAffineError, shape_of
from fewtune.schedule_check.fills import Fill, Kind

# Typical size of values that are rounded to bytes: a third of the range, so that few are clipped.
_WANTED = {"uint8": 60.0, "int8": 40.0}
# Zero point of unsigned bytes.
_ZERO_POINT = 100.0
_TYPICAL = {"uint8": 147.0, "int8": 74.0, "bool": 0.7}
_OF_FLOATS, _OF_INTEGERS = 0.58, 5.0
# Sum of four products of bytes.
_DOT4 = 2 * _TYPICAL["uint8"] * _TYPICAL["int8"]
# Byte weights that are stored in integers.
_BYTE = 127.0
# Addends to larger sums need a larger size than ordinary values have.
_LARGE = 8.0
_BETWEEN_ONES = ("sigmoid", "tanh", "erf", "sin", "cos")
_CURVES = (*_BETWEEN_ONES, "exp", "exp2", "exp10", "pow", "log")
_COMMUTING = ("Add", "Mul", "Max", "Min")


class _Typical(NamedTuple):
    """Typical size of a value, and whether it is never negative, so that its sums grow."""

    size: float
    is_positive: bool = False


def fills(function: Any, scales: list[float]) -> dict[int, Fill]:
    """The arguments that need special values.

    Parameters
    ----------
    function : PrimFunc
        Unscheduled.
    scales : list of float
        Factor of the ordinary values of each parameter.

    Returns
    -------
    fills : dict of Fill
        By number of the parameter.
    """
    return _Kernel(function, scales).found


class _Kernel:
    """Propagates typical sizes through a kernel's blocks, in the order in which they run."""

    def __init__(self, function: Any, scales: list[float]) -> None:
        self.found: dict[int, Fill] = {}
        self._places = {each: place for place, each in enumerate(function.params)}
        self._scales = scales
        self._sizes: dict[Any, _Typical] = {}
        blocks: list[Any] = []
        tvm_ffi.structural_walk(function.body, (tvm.s_tir.SBlock, blocks.append))
        self._blocks = [each for each in blocks if type(each.body).__name__ == "BufferStore"]
        self._ends = [_ends(block.body.value) for block in self._blocks]
        buffers = [*function.params, *(block.body.buffer for block in self._blocks)]
        self._has_bytes = any(str(getattr(b, "dtype", "")) in _WANTED for b in buffers)
        for number, block in enumerate(self._blocks):
            self._number = number
            self._block, self._points = block, prod(int(a.dom.extent) for a in block.iter_vars)
            self._sizes[block.body.buffer] = self._computed()

    def _computed(self) -> _Typical:
        """Typical size of the current block's output."""
        store = self._block.body
        length = length_of(self._block)
        if self._block.init is None:
            return self._of(store.value)
        rest = store.value
        for ours, other in _sides(store.value):
            if getattr(ours, "source", None) is not None and ours.source.same_as(store.buffer):
                rest = other
        made = self._of(rest, is_summed=True)
        if type(store.value).__name__ != "Add":
            return made
        times = length if made.is_positive else sqrt(length)
        return made._replace(size=made.size * times)

    def _of(self, value: Any, *, is_summed: bool = False) -> _Typical:
        kind = type(value).__name__
        if kind in ("IntImm", "FloatImm"):
            return _Typical(abs(float(value.value)), float(value.value) >= 0)
        if kind == "TensorLoad":
            return self._loaded(value)
        if kind == "Cast":
            made, dtype = self._of(value.value, is_summed=is_summed), str(value.ty.dtype)
            most = _TYPICAL.get(dtype, made.size)
            return _Typical(min(made.size, most), made.is_positive or dtype.startswith("u"))
        if kind in ("Add", "Sub"):
            return self._added(value)
        if kind in ("Mul", "Div"):
            return self._multiplied(value, is_summed=is_summed)
        if kind in ("Max", "Min"):
            return self._limited(value)
        if kind == "Select":
            return self._either(value.true_value, value.false_value)
        if kind == "Call":
            return self._called(value)
        return _Typical(1.0)

    def _either(self, *values: Any) -> _Typical:
        made = [self._of(each) for each in values]
        return _Typical(max(m.size for m in made), all(m.is_positive for m in made))

    def _loaded(self, load: Any) -> _Typical:
        known = self._sizes.get(load.source)
        if known is not None:
            return known
        dtype, place = str(load.source.dtype), self._places.get(load.source)
        fill = self.found.get(place) if place is not None else None
        if fill is not None:
            is_positive = fill.kind is Kind.SCALE or (fill.kind is Kind.CONSTANT and fill.size >= 0)
            return _Typical(abs(fill.size), is_positive)
        if dtype.startswith(("float", "bfloat")):
            return _Typical(_OF_FLOATS * (1.0 if place is None else self._scales[place]))
        return _Typical(_TYPICAL.get(dtype, _OF_INTEGERS), dtype != "int8")

    def _free(self, value: Any) -> int | None:
        """The number of a parameter that is read, if it is no data and has no size yet."""
        place = self._places.get(getattr(value, "source", None))
        if place is None or place in self.found or value.source in self._sizes:
            return None
        return place if _count(value.source) < self._points else None

    def _added(self, value: Any) -> _Typical:
        for given, other in _sides(value):
            place = self._free(given)
            if place is None or not self._has_bytes:
                continue
            made, dtype = self._of(other), str(given.source.dtype)
            is_float = dtype.startswith("float")
            if is_float and _count(given.source) == 1 and self._end() == "uint8":
                self.found[place] = Fill(Kind.CONSTANT, _ZERO_POINT)
            elif made.size > _LARGE and (is_float or dtype == "int32"):
                kind = Kind.SIGNED if is_float else Kind.WHOLE
                self.found[place] = Fill(kind, made.size)
            break
        a, b = self._of(value.a), self._of(value.b)
        is_positive = a.is_positive and b.is_positive and type(value).__name__ == "Add"
        return _Typical(
            a.size + b.size if is_positive else sqrt(a.size**2 + b.size**2), is_positive
        )

    def _multiplied(self, value: Any, *, is_summed: bool) -> _Typical:
        is_product = type(value).__name__ == "Mul"
        for given, other in _sides(value) if self._has_bytes else ():
            place = self._free(_uncast(given))
            if place is None:
                continue
            dtype, made = str(_uncast(given).source.dtype), self._of(other)
            if is_summed and dtype == "int32":
                self.found[place] = Fill(Kind.WHOLE, _BYTE)
            elif not is_summed and dtype.startswith("float") and made.size:
                wanted = _WANTED.get(self._end(), 1.0)
                size = wanted / made.size if is_product else made.size / wanted
                self.found[place] = Fill(Kind.SCALE, size)
                return made._replace(size=wanted)
            break
        a, b = self._of(value.a), self._of(value.b)
        size = a.size * b.size if is_product else a.size / max(b.size, 1e-30)
        return _Typical(size, a.is_positive and b.is_positive)

    def _limited(self, value: Any) -> _Typical:
        """Size of a maximum or minimum; a scalar parameter in it is a limit."""
        is_lower = type(value).__name__ == "Max"
        for given, other in _sides(value):
            place, made = self._free(given), self._of(other)
            if place is None or _count(given.source) > 1:
                continue
            if str(given.source.dtype).startswith("float"):
                end = self._end()
                limit = -made.size if is_lower else made.size
                if end in _WANTED:
                    limit = float(np.iinfo(end).min if is_lower else np.iinfo(end).max)
                self.found[place] = Fill(Kind.CONSTANT, limit)
            return made
        a, b = self._of(value.a), self._of(value.b)
        if is_lower:
            return _Typical(max(a.size, b.size), a.is_positive or b.is_positive)
        # The least of two values; a constant is a limit that few values reach.
        return a if type(value.b).__name__ in ("IntImm", "FloatImm") else b

    def _called(self, value: Any) -> _Typical:
        name = str(getattr(value.op, "name", "")).rpartition(".")[2]
        if dot_products.is_dot(value):
            for each in value.args:
                self._note(each, Kind.WORDS)
            return _Typical(_DOT4)
        if name == "if_then_else":
            return self._either(*value.args[1:])
        if name in _BETWEEN_ONES or name in _CURVES:
            # The argument may contain parameters.
            for each in value.args:
                self._of(each)
            return _Typical(0.6 if name in _BETWEEN_ONES else 1.0, name not in ("tanh", "erf"))
        if not value.args:
            return _Typical(1.0)
        made = self._of(value.args[0])
        if name in ("sqrt", "rsqrt"):
            size = max(made.size, 1e-30) ** (0.5 if name == "sqrt" else -0.5)
            return _Typical(size, is_positive=True)
        return made

    def _note(self, word: Any, kind: Kind) -> None:
        place = self._places.get(getattr(word, "source", None))
        if place is not None:
            self.found[place] = Fill(kind, 1.0)

    def _end(self) -> str:
        """The next rounding to bytes, or saturating function, from the current block on."""
        return next((end for ends in self._ends[self._number :] for end in ends), "")


def length_of(block: Any) -> int:
    """Number of elements that a block reduces to one."""
    return prod(
        int(axis.dom.extent)
        for axis in block.iter_vars
        if axis.iter_type == tvm.tirx.IterVar.CommReduce
    )


def _sides(value: Any) -> list[tuple[Any, Any]]:
    """Operands of an operation that may be a parameter, each with the other operand."""
    if not hasattr(value, "a"):
        return []
    sides = [(value.b, value.a)]
    return [*sides, (value.a, value.b)] if type(value).__name__ in _COMMUTING else sides


def _ends(value: Any) -> list[str]:
    """What ends a chain of factors: roundings to bytes, and saturating functions."""
    found: list[str] = []

    def cast(node: Any) -> None:
        if str(node.ty.dtype) in _WANTED and str(node.value.ty.dtype).startswith("float"):
            found.append(str(node.ty.dtype))

    def called(node: Any) -> None:
        name = str(getattr(node.op, "name", "")).rpartition(".")[2]
        if name in _CURVES:
            found.append(name)

    tvm_ffi.structural_walk(value, [(tvm.tirx.Cast, cast), (tvm.ir.Call, called)])
    return found


def _uncast(value: Any) -> Any:
    while type(value).__name__ == "Cast":
        value = value.value
    return value


def _count(buffer: Any) -> float:
    try:
        return prod(shape_of(buffer))
    except NotAffineError:
        return float("inf")
