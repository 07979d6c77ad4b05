"""Interpreter of unscheduled kernels in NumPy: nothing is compiled.

A task is written in TensorIR: loops over blocks, each of which computes one element. Here NumPy
computes all elements of a block together, each with an error bound. That takes less time than
compiling a second kernel, and does not depend on the compiler. Kernels that the interpreter does
not support (`UnknownError`) are compiled instead (`fewtune.schedule_check.reference`).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from math import prod
from typing import Any

import numpy as np

from fewtune.runtime import dot_products
from fewtune.runtime.tvm import tvm
from fewtune.schedule.access import NotAffineError, shape_of
from fewtune.schedule_check import cases, functions, numbers, sums
from fewtune.schedule_check.numbers import Number, UnknownError
from fewtune.schedule_check.reads import Affine, affine, radices, read

_CONSTANTS = ("IntImm", "FloatImm")


def outputs_of(function: Any, arguments: Sequence[np.ndarray | None]) -> dict[int, Number]:
    """Compute the outputs of an unscheduled kernel.

    Parameters
    ----------
    function : PrimFunc
    arguments : sequence of array
        One for each parameter, None for those that are only written. Float16 is given as float32.

    Returns
    -------
    outputs : dict of Number
        By number of the parameter.

    Raises
    ------
    UnknownError
        If the kernel has a part that is not supported.
    """
    root = function.body
    if type(root).__name__ != "SBlockRealize":
        raise UnknownError(type(root).__name__)
    buffers: dict[Any, Number] = {}
    for parameter, array in zip(function.params, arguments, strict=True):
        if array is not None:
            buffers[parameter] = Number(array, 0.0, str(parameter.dtype))
    written = set()
    with np.errstate(all="ignore"):
        for statement in _statements(root.block.body):
            target, made = _Block.of(statement, buffers).computed()
            buffers[target] = made
            written.add(target)
    return {
        place: buffers[parameter]
        for place, parameter in enumerate(function.params)
        if parameter in written
    }


def _statements(body: Any) -> list[Any]:
    if type(body).__name__ != "SeqStmt":
        return [body]
    return [each for statement in body.seq for each in _statements(statement)]


class _Block:
    """One block, and the buffers that earlier blocks have written."""

    def __init__(self, block: Any, buffers: dict[Any, Number]) -> None:
        self._block = block
        self._buffers = buffers
        self._axes: dict[Any, Affine] = {}
        self._extents: list[int] = []
        self._reduced: list[int] = []
        kinds = {axis.var: axis.iter_type for axis in block.iter_vars}
        extents = {axis.var: int(axis.dom.extent) for axis in block.iter_vars}
        for variable, split in radices(block.body, extents).items():
            is_reduced = kinds[variable] == tvm.tirx.IterVar.CommReduce
            factors, unit = {}, extents[variable]
            for radix in [unit] if is_reduced else split:
                unit //= radix
                factors[len(self._extents)] = unit
                self._extents.append(radix)
            if is_reduced:
                self._reduced += factors
            self._axes[variable] = factors, 0

    @staticmethod
    def of(statement: Any, buffers: dict[Any, Number]) -> _Block:
        """The block inside a loop nest over all of its iterations."""
        loops = {}
        while type(statement).__name__ == "For":
            loops[statement.loop_var] = (int(statement.min), int(statement.extent))
            statement = statement.body
        if type(statement).__name__ != "SBlockRealize" or not _is_true(statement.predicate):
            raise UnknownError(type(statement).__name__)
        block = statement.block
        # The block of a scalar has one axis of extent 1 without a loop.
        moved = [
            (axis, value)
            for axis, value in zip(block.iter_vars, statement.iter_values, strict=True)
            if not (_is_zero(value) and int(axis.dom.extent) == 1 and _is_zero(axis.dom.min))
        ]
        if len(loops) != len(moved) or list(block.alloc_buffers):
            raise UnknownError("a block within a block")
        for axis, value in moved:
            found = loops.get(value) if type(value).__name__ == "Var" else None
            if found is None or found != (0, int(axis.dom.extent)) or int(axis.dom.min):
                raise UnknownError("a block whose axes are no loops")
        return _Block(block, buffers)

    def computed(self) -> tuple[Any, Number]:
        """The buffer that the block writes, and the values."""
        store = self._block.body
        if type(store).__name__ != "BufferStore":
            raise UnknownError(type(store).__name__)
        made = self._reduction(store) if self._reduced else self._of(store.value)
        return store.buffer, self._placed(store, made)

    def _reduction(self, store: Any) -> Number:
        if self._block.init is None:
            raise UnknownError("a reduction without a beginning")
        kind, rest = self._combined(store)
        if kind == "Add":
            if dot_products.is_dot(rest):
                unsigned, signed = (self._of(each) for each in rest.args)
                made = sums.word_products(unsigned, signed, self._reduced, self._extents)
            elif type(rest).__name__ == "Mul":
                a, b = self._of(rest.a), self._of(rest.b)
                try:
                    made = sums.products(a, b, self._reduced, self._extents)
                except UnknownError:
                    made = self._summed(rest)
            else:
                made = self._summed(rest)
        else:
            made = sums.extreme(self._of(rest), kind.lower(), self._reduced, self._extents)
        begun = self._of(self._block.init.value)
        if kind == "Add" and begun.is_exact and not np.any(begun.value):
            return made
        return functions.BINARY[kind](begun, made)

    def _summed(self, expression: Any) -> Number:
        if prod(self._extents) > 2**26:
            raise UnknownError("a sum of too many elements")
        return sums.summed(self._of(expression), self._reduced, self._extents)

    def _combined(self, store: Any) -> tuple[str, Any]:
        """How a reduction combines an element with its result, and the element's expression."""
        kind = type(store.value).__name__
        if kind not in ("Add", "Max", "Min"):
            raise UnknownError(f"a reduction by {kind}")
        for ours, other in ((store.value.a, store.value.b), (store.value.b, store.value.a)):
            if type(ours).__name__ == "TensorLoad" and ours.source.same_as(store.buffer):
                return kind, other
        raise UnknownError("a reduction of another kind")

    def _placed(self, store: Any, made: Number) -> Number:
        """Arrange one element for each iteration in the layout of the buffer."""
        try:
            shape = shape_of(store.buffer)
        except NotAffineError as fault:
            raise UnknownError(str(fault)) from None
        order: list[int] = []
        for index, size in zip(store.indices, shape, strict=True):
            found = affine(index, self._axes, self._extents)
            if found is None or found[1]:
                raise UnknownError("a block that writes out of order")
            axes = sorted(found[0], key=lambda axis: -found[0][axis])
            units = [prod(self._extents[a] for a in axes[n + 1 :]) for n in range(len(axes))]
            is_whole = prod(self._extents[axis] for axis in axes) == size
            if not is_whole or units != [found[0][axis] for axis in axes]:
                raise UnknownError("a block that writes a part")
            order += axes
        if len(order) != len(set(order)):
            raise UnknownError("a block that writes a diagonal")
        rest = [axis for axis in range(len(self._extents)) if axis not in order]
        if any(self._extents[axis] > 1 and axis not in self._reduced for axis in rest):
            raise UnknownError("a block that writes again and again")

        def placed(array: Any) -> np.ndarray:
            free = [1 if axis in rest else extent for axis, extent in enumerate(self._extents)]
            array = np.broadcast_to(sums.whole(array, self._extents), free)
            array = array.transpose([*order, *rest]).reshape(shape)
            # ascontiguousarray gives a scalar an axis.
            return np.ascontiguousarray(array).reshape(shape)

        dtype = str(store.buffer.dtype)
        error = made.error if isinstance(made.error, float) else placed(made.error)
        value = placed(made.value).astype(numbers.held(dtype), copy=False)
        return Number(value, error, dtype, made.is_whole)

    def _of(self, expression: Any) -> Number:
        """Evaluate an expression over the block's axes."""
        kind = type(expression).__name__
        if kind in _CONSTANTS:
            return numbers.constant(expression.value, str(expression.ty.dtype))
        if kind in ("Var", "FloorDiv", "FloorMod"):
            found = affine(expression, self._axes, self._extents)
            if found is not None:
                return self._index(found)
        if kind in functions.BINARY:
            return functions.BINARY[kind](self._of(expression.a), self._of(expression.b))
        if kind == "TensorLoad":
            return self._read(expression)
        if kind == "Cast":
            return numbers.cast(self._of(expression.value), str(expression.ty.dtype))
        given = cases.selection(expression)
        if given is not None:
            return self._selected(expression, given)
        if kind == "Not":
            a = self._of(expression.a)
            return a._replace(value=np.logical_not(a.value))
        if kind == "Call":
            return self._called(expression)
        raise UnknownError(kind)

    def _called(self, expression: Any) -> Number:
        name = str(getattr(expression.op, "name", "")).rpartition(".")[2]
        arguments = [self._of(each) for each in expression.args]
        if name in functions.BITS:
            return functions.BITS[name](*arguments)
        if name == "reinterpret":
            return numbers.reinterpreted(arguments[0], str(expression.ty.dtype))
        if not arguments:
            raise UnknownError(name)
        return functions.call(name, arguments)

    def _selected(self, expression: Any, given: Sequence[Any]) -> Number:
        found = cases.by_place(expression, self._of, len(self._extents))
        if found is None:
            return numbers.select(*(self._of(each) for each in given))
        made = [(places, self._at(places)._of(value)) for places, value in found]
        return cases.joined(made, self._extents)

    def _at(self, places: cases.Places) -> _Block:
        """The same block, restricted to some indices of an axis."""
        part = copy(self)
        part._axes = cases.within(self._axes, places)
        part._extents = list(self._extents)
        part._extents[places.axis] = places.number
        return part

    def _index(self, index: Affine) -> Number:
        """An index over the axes on which it depends."""
        factors, value = index
        made: Any = np.int64(value)
        for axis, factor in factors.items():
            shape = [1] * len(self._extents)
            shape[axis] = -1
            made = made + (factor * np.arange(self._extents[axis])).reshape(shape)
        return Number(made, 0.0, "int64")

    def _read(self, load: Any) -> Number:
        given = self._buffers.get(load.source)
        if given is None:
            raise UnknownError("a buffer that was not written before")

        def index(expression: Any) -> Any:
            found = self._of(expression)
            if not found.is_exact:
                raise UnknownError("an index that was rounded")
            return found.value

        has_errors = not isinstance(given.error, float)
        arrays = [given.value, given.error] if has_errors else [given.value]
        value, *errors = read(arrays, list(load.indices), self._axes, self._extents, index)
        return given._replace(value=value, error=errors[0] if has_errors else given.error)


def _is_zero(value: Any) -> bool:
    return type(value).__name__ in ("int", "IntImm") and int(value) == 0


def _is_true(predicate: Any) -> bool:
    return type(predicate).__name__ == "IntImm" and bool(predicate.value)
