"""Faults seeded into a compiled model while it runs, and into the attributes of its operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import ModelProto, helper

from fewtune.onnx_graph.graph import copy_model
from fewtune.runtime.executable import CompiledModel, Observer

_LEAST_WEIGHT = 16
# Longest axis that is worth a fault of a part of it.
_LEAST_EXTENT = 8
_MOST_BYTE = 255
# Only inputs that models seldom get make values of this size.
_FAR, _HUGE = 100.0, 1e4
Change = Callable[[np.ndarray], None]
Noted = list[tuple[str, int, list[np.ndarray | None]]]


class Fault(NamedTuple):
    """A change at one call of a kernel: of one of its weights, or (argument -1) of its result."""

    kind: str
    kernel: str
    call: int
    argument: int
    change: Change


class Mutated:
    """A library that runs with a fault in it; otherwise as `CompiledModel`."""

    def __init__(self, compiled: CompiledModel) -> None:
        self._compiled = compiled
        self._kept: np.ndarray | None = None
        self.fault: Fault | None = None

    def outputs(self, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """Run once on ``inputs``."""
        return self.observed(inputs, lambda kernel, call, arguments: None)

    def observed(self, inputs: list[np.ndarray], observe: Observer) -> list[np.ndarray]:
        """Run once, and show every kernel's arguments after its call, with the fault."""

        def before(kernel: str, call: int, arguments: Sequence[Any]) -> None:
            fault = self._fault_at(kernel, call)
            if fault is not None and fault.argument >= 0:
                tensor = arguments[fault.argument]
                self._kept = tensor.numpy().copy()
                tensor.copyfrom(_changed(fault, self._kept))

        def after(kernel: str, call: int, arguments: Sequence[Any]) -> None:
            fault = self._fault_at(kernel, call)
            if fault is not None and fault.argument >= 0:
                arguments[fault.argument].copyfrom(self._kept)
            elif fault is not None:
                arguments[-1].copyfrom(_changed(fault, arguments[-1].numpy()))
            observe(kernel, call, arguments)

        return self._compiled.observed(inputs, after, before)

    def own_result(self, inputs: list[np.ndarray], fault: Fault) -> np.ndarray:
        """What the faulty kernel writes."""
        found = []

        def look(kernel: str, call: int, arguments: Sequence[Any]) -> None:
            if (kernel, call) == (fault.kernel, fault.call):
                found.append(arguments[-1].numpy().copy())

        self.observed(inputs, look)
        return found[0]

    def _fault_at(self, kernel: str, call: int) -> Fault | None:
        fault = self.fault
        return fault if fault and (fault.kernel, fault.call) == (kernel, call) else None


def _changed(fault: Fault, array: np.ndarray) -> np.ndarray:
    changed = array.copy()
    fault.change(changed)
    return changed


def noted(compiled: CompiledModel, inputs: list[np.ndarray]) -> Noted:
    """Every call of a kernel, with copies of its arguments."""
    found: Noted = []

    def look(kernel: str, call: int, arguments: Sequence[Any]) -> None:
        arrays = [a.numpy().copy() if hasattr(a, "numpy") else None for a in arguments]
        found.append((kernel, call, arrays))

    compiled.observed(inputs, look)
    return found


def seeded_faults(first: Noted, second: Noted, generator: np.random.Generator) -> Iterator[Fault]:
    """Faults without end, each kind as often.

    Parameters
    ----------
    first, second : list
        The calls of runs on two draws of inputs, of `noted`: weights are what is the same in both.
    generator : Generator
    """
    weights = [
        (kernel, call, place)
        for (kernel, call, ours), (_, _, theirs) in zip(first, second, strict=True)
        for place, (a, b) in enumerate(zip(ours[:-1], theirs[:-1], strict=True))
        if a is not None and a.dtype.kind == "f" and a.size >= _LEAST_WEIGHT
        if np.array_equal(a, b) and a.any()
    ]
    results = [(k, c, a[-1]) for k, c, a in first if a and a[-1] is not None]
    results = [each for each in results if each[2].dtype.kind == "f" or each[2].dtype == np.uint8]
    wide = [each for each in results if each[2].ndim and max(each[2].shape) >= _LEAST_EXTENT]
    padded = [each for each in wide if "conv" in each[0] and each[2].ndim == 4]
    padded = [each for each in padded if min(_rows(each[2]), 3) > 1]
    floats = [each for each in results if each[2].dtype.kind == "f"]
    quantised = [each for each in results if each[2].dtype == np.uint8]
    places = [each for each in first if each[0].startswith("take")]
    shifts = [each for each in first if "shift" in each[0]]

    def pick(items: Sequence[Any]) -> Any:
        return items[int(generator.integers(len(items)))]

    while True:
        if weights:
            kernel, call, place = pick(weights)
            yield Fault("weight off by 1 %", kernel, call, place, _scale(np.s_[...]))
        if wide:
            yield from _of_parts(*pick(wide), generator)
        if padded:
            kernel, call, array = pick(padded)
            last = bool(generator.integers(2))
            yield Fault("border row wrong", kernel, call, -1, _border(_rows_axis(array), last))
        if floats:
            kernel, call, _ = pick(floats)
            yield Fault("infinity lost", kernel, call, -1, _without_infinity)
            kernel, call, _ = pick(floats)
            yield Fault("digits lost far from zero", kernel, call, -1, _rounded_far)
            kernel, call, _ = pick(floats)
            yield Fault("huge element spread", kernel, call, -1, _spread)
        if places:
            kernel, call, (table, *_) = pick(places)
            yield Fault("last place of a table lost", kernel, call, 1, _without_last(len(table)))
        if shifts:
            kernel, call, _ = pick(shifts)
            yield Fault("shift modulo the width", kernel, call, 0, _within_width)
        if quantised:
            kernel, call, _ = pick(quantised)
            yield Fault("zero point off by one", kernel, call, -1, _moved)


def _of_parts(
    kernel: str, call: int, array: np.ndarray, generator: np.random.Generator
) -> Iterator[Fault]:
    """Faults of a part of a result's longest axis."""
    axis = int(np.argmax(array.shape))
    pair = generator.choice(array.shape[axis], 2, replace=False)
    yield Fault("two channels swapped", kernel, call, -1, _swap(axis, pair))
    start = 4 * int(generator.integers(max(1, array.shape[axis] // 4)))
    yield Fault("tile left out", kernel, call, -1, _zero(axis, slice(start, start + 4)))
    part = array.shape[axis] // 4
    start = part * int(generator.integers(4))
    index = (slice(None),) * axis + (slice(start, start + part),)
    yield Fault("slice scaled", kernel, call, -1, _scale(index))


def _rows_axis(array: np.ndarray) -> int:
    """The axis of rows, whichever layout: the first of two neighbours of the same size."""
    return 2 if array.shape[2] == array.shape[3] else 1


def _rows(array: np.ndarray) -> int:
    return int(array.shape[_rows_axis(array)])


def _scale(index: Any) -> Change:
    def change(array: np.ndarray) -> None:
        if array.dtype == np.uint8:
            array[index] = np.clip(np.rint(1.01 * array[index]), 0, _MOST_BYTE)
        else:
            array[index] *= array.dtype.type(1.01)

    return change


def _moved(array: np.ndarray) -> None:
    array[...] = np.minimum(array, _MOST_BYTE - 1) + 1


def _swap(axis: int, pair: np.ndarray) -> Change:
    def change(array: np.ndarray) -> None:
        view = np.moveaxis(array, axis, 0)
        view[pair] = view[pair[::-1]]

    return change


def _without_infinity(array: np.ndarray) -> None:
    np.nan_to_num(array, copy=False)


def _rounded_far(array: np.ndarray) -> None:
    """Numbers far from zero keep three digits, as differences of their squares do."""
    far = np.isfinite(array) & (np.abs(array) > _FAR)
    array[far] *= array.dtype.type(1 + 2.0**-10)


def _spread(array: np.ndarray) -> None:
    """All elements move by a part of the largest huge one, as in the tiles of a transform."""
    size = np.abs(array[np.isfinite(array)])
    array += array.dtype.type(2.0**-16 * size[size > _HUGE].max(initial=0))


def _without_last(count: int) -> Change:
    def change(array: np.ndarray) -> None:
        array[array == count - 1] -= 1

    return change


def _within_width(array: np.ndarray) -> None:
    array %= array.dtype.type(8 * array.itemsize)


def _border(axis: int, last: bool) -> Change:
    def change(array: np.ndarray) -> None:
        view = np.moveaxis(array, axis, 0)
        view[-1 if last else 0] = view[-2 if last else 1]

    return change


def _zero(axis: int, rows: slice) -> Change:
    def change(array: np.ndarray) -> None:
        np.moveaxis(array, axis, 0)[rows] = 0

    return change


class WrongAttribute(NamedTuple):
    """Another value of an attribute of one operator, with which shapes stay as they are."""

    node: int
    name: str
    value: Any

    def applied(self, model: ModelProto) -> ModelProto:
        """A copy of the model with it."""
        changed = copy_model(model)
        node = changed.graph.node[self.node]
        kept = [each for each in node.attribute if each.name != self.name]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute(self.name, self.value)])
        return changed


def wrong_attributes(model: ModelProto) -> list[WrongAttribute]:
    """Every attribute that can be wrong in this model."""
    return [
        WrongAttribute(place, name, value)
        for place, node in enumerate(model.graph.node)
        for name, value in _wrong_values(node)
    ]


def _wrong_values(node: onnx.NodeProto) -> Iterator[tuple[str, Any]]:
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    pads = list(given.get("pads", []))
    if node.op_type in ("Conv", "MaxPool", "AveragePool") and len(pads) == 4:
        if pads[0]:
            yield "pads", [pads[0] - 1, pads[1], pads[2] + 1, pads[3]]
        if pads[3]:
            yield "pads", [pads[0], pads[1] + 1, pads[2], pads[3] - 1]
    if node.op_type == "AveragePool" and any(pads):
        yield "count_include_pad", 1 - given.get("count_include_pad", 0)
    if node.op_type == "Gemm":
        yield "alpha", 1.01 * given.get("alpha", 1.0)
    if node.op_type == "Softmax":
        yield "axis", 0 if given.get("axis", -1) != 0 else -1
    if node.op_type == "LeakyRelu":
        yield "alpha", 1.1 * given.get("alpha", 0.01)
    if node.op_type == "HardSigmoid":
        yield "alpha", 1.1 * given.get("alpha", 0.2)
    if node.op_type == "LayerNormalization":
        yield "epsilon", 1e-2
