"""Runs a candidate once and compares every output element with its task's reference.

A kernel with its default schedule computes the reference, once for each task in a process: the
import has compared such kernels' outputs with onnxruntime's. If a candidate differs, the kernel
without any schedule decides.

Test arguments differ from their neighbours along every axis, so a kernel that reads the wrong
element reads another value. Sums are kept near one, so that a sigmoid or a comparison behind a
product is not saturated. Kernels in eight bits get limits, zero points and addends of the size of
their bytes and sums, and the size of scales that shows most.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import gcd, prod, sqrt
from typing import Any, NamedTuple

import numpy as np
import tvm_ffi

from fewtune.runtime import dot_products
from fewtune.runtime.kernel_store import KernelStore
from fewtune.runtime.target import has_own_device, tvm_device
from fewtune.runtime.tvm import build, module_of, tvm, without_checks
from fewtune.schedule.defaults import default_schedule
from fewtune.task.access import nodes_of, shape_of
from fewtune.task.analysis import analyse
from fewtune.task.weight_layout import (
    PREPROC,
    LayoutError,
    addresses_of,
    layout_blocks,
    without_layout_block,
)
from fewtune.tvm_compat.values import view_of

# Half a unit in the last place, relative. Types that are not here are exact.
ROUNDING = {"float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}
_BYTES = ("int8", "uint8")
_ROUNDS = frozenset(f"tirx.{name}" for name in ("floor", "ceil", "trunc", "round", "nearbyint"))
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
        elif made.dtype not in ROUNDING:
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
    called = {getattr(call.op, "name", "") for call in calls}
    return Signature(
        parameters,
        _most_index([*loads, *stores]),
        max(map(_length, blocks), default=1),
        has_floats=not types.isdisjoint(ROUNDING),
        takes_steps=any(map(_rounds, casts)) or not _ROUNDS.isdisjoint(called),
    )


def _length(block: Any) -> int:
    """Number of elements that a block reduces to one."""
    reduced = tvm.tirx.IterVar.CommReduce
    return prod(int(a.dom.extent) for a in block.iter_vars if a.iter_type == reduced)


def _rounds(cast: Any) -> bool:
    from_float = str(cast.value.ty.dtype) in ROUNDING
    return from_float and str(cast.ty.dtype) not in ROUNDING


def _most_index(accesses: list[Any]) -> int | None:
    """The least extent of an axis that is indexed by a value from memory."""
    found = []
    for access in accesses:
        buffer = access.source if hasattr(access, "source") else access.buffer
        for index, size in zip(access.indices, shape_of(buffer), strict=True):
            if nodes_of(index, tvm.ir.expr.TensorLoad):
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
        if factor is not None and factor.dtype in ROUNDING:
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
        elif each.dtype not in ROUNDING or is_sum:
            continue
        elif kind in ("Mul", "Div"):
            each.low, each.high, each.is_factor = 0.5, 1.5, True
        elif is_one and end and kind in ("Max", "Min"):
            limits = np.iinfo(end)
            each.low = each.high = limits.min if kind == "Max" else limits.max
        elif is_one and end == "uint8":
            each.low = each.high = _ZERO_POINT


def drawn(given: Signature, place: int, *, positive: bool, power: int = 0) -> np.ndarray:
    """The values of one argument, each of which may stand for several elements; read only.

    Each ``place`` has different values. If ``positive``, ordinary floats are above zero; scales are
    multiplied by two to the ``power``.
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
        table = (table * np.float32(2.0**power if parameter.is_factor else 1)).astype(dtype)
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


class ScheduleCheck(NamedTuple):
    """The task of a candidate, in the form that is sent to the process that runs it.

    Equal kernels have equal keys; ``module`` is the unscheduled kernel as TVM JSON. A candidate
    that ``is_default`` has the default schedule, whose outputs are the reference.
    """

    key: str
    module: str
    is_default: bool = False


class Verdict(NamedTuple):
    """Result of a check: an empty ``fault`` if the outputs are right.

    ``spent_s`` are the seconds of the run and its comparison, without those of the reference.
    """

    fault: str
    spent_s: float = 0.0


# Difference of two orders of summation, in roundings of one of the root of the sum's length.
_ORDER = 32.0
# Exponentials and the like are polynomials, which are off by a few units of float32.
_FUNCTION = 2.0**-16
# Times the movement of an output when its arguments are moved by a rounding.
_MOVED = 8.0
# Share of elements, and least number, that may take another step if floats are rounded to steps.
_STEP_SHARE, _STEP_LEAST = 0.005, 2
# Elements that are compared at once: their differences stay in a core's cache.
_PART = 2**14


@dataclass(frozen=True)
class TaskOutput:
    """One output of a kernel that is known to be right.

    An element may differ by ``relative`` times its magnitude, plus ``absolute``. If the output
    ``may_step``, a few elements may differ: integers by one, floats and booleans freely.
    """

    value: np.ndarray
    relative: float
    absolute: float
    may_step: bool

    @staticmethod
    def of(
        value: np.ndarray, length: int, may_step: bool, moved: np.ndarray | None = None
    ) -> TaskOutput:
        """From an output of a kernel whose longest sum has ``length`` terms.

        ``moved`` is the output for arguments that were moved by a rounding.
        """
        if value.dtype.name not in ROUNDING:
            return TaskOutput(value, 0.0, 0.0, may_step)
        size = _mean(np.abs(value))
        unit = _ORDER * ROUNDING[value.dtype.name] * sqrt(length) + _FUNCTION
        more = 0.0
        if moved is not None and size:
            with np.errstate(invalid="ignore", over="ignore"):
                more = _MOVED * _mean(np.abs(moved.astype("float64") - value)) / size
        return TaskOutput(value, unit + more, (unit + more) * size, may_step)

    def fault(self, found: np.ndarray) -> str:
        """What differs from the right values; empty if nothing does."""
        a, b = found.reshape(-1), self.value.reshape(-1)
        parts = [slice(begin, begin + _PART) for begin in range(0, a.size, _PART)]
        wrong = np.concatenate([np.zeros(0, int), *(self._wrong(a, b, part) for part in parts)])
        few = max(_STEP_LEAST, int(_STEP_SHARE * a.size))
        if self.may_step and len(wrong) <= few and self._are_near(a[wrong], b[wrong]):
            return ""
        if not len(wrong):
            return ""
        place = np.unravel_index(int(wrong[0]), self.value.shape)
        return (
            f"{len(wrong)} of {a.size} elements differ; at {[int(each) for each in place]} it has "
            f"{a[wrong[0]]:.6g}, right is {b[wrong[0]]:.6g}"
        )

    def _wrong(self, found: np.ndarray, right: np.ndarray, part: slice) -> np.ndarray:
        """Places of elements of a part that differ by more than allowed."""
        a, b = found[part], right[part]
        if a.dtype.kind != "f":
            return np.flatnonzero(a != b) + part.start
        with np.errstate(invalid="ignore", over="ignore"):
            is_right = np.abs(a - b) <= self.relative * np.abs(b) + self.absolute
        if not is_right.all():
            is_right |= (a == b) | (np.isnan(a) & np.isnan(b))
        return np.flatnonzero(~is_right) + part.start

    @staticmethod
    def _are_near(found: np.ndarray, right: np.ndarray) -> bool:
        if found.dtype.kind in "iu":
            return bool(np.all(np.abs(found.astype("float64") - right) <= 1))
        return bool(np.all(np.isfinite(found) == np.isfinite(right)))


def _mean(values: np.ndarray) -> float:
    """Mean of the finite values; a few infinite ones hide no fault."""
    finite = values[np.isfinite(values)]
    return float(finite.mean(dtype="float64")) if finite.size else 0.0


# Kernels of so many operations take a few seconds without a schedule.
_MOST_UNSCHEDULED_FLOPS = 4e9
# Bytes of integers that a kernel has not written: an unlikely result.
_POISON = 0xA5
# Powers of two that are tried as the size of scales: sums of bytes have up to seven digits.
_POWERS = range(0, -27, -3)
# Elements of an output that are looked at for that.
_SAMPLED = 2**16

# Arrays of at least this size lie in borrowed memory: the first use of a page costs more than a
# copy into it (over a second for VGG 19's first product, else 0.1 s).
_LARGE_BYTES = 2**24

# Runs a kernel on the arguments, moved by a rounding or not: its outputs, until the next run.
_Run = Callable[[bool], dict[int, np.ndarray]]
# Lends memory for the float32 elements of a large parameter, given its number and theirs
# (`fewtune.timing.timer.Buffers.borrow`).
Borrow = Callable[[int, int], Any]


@dataclass
class TaskReference:
    """Test arguments and expected outputs of one task.

    Kernels for ``target`` compute the reference; candidates run on ``device``.
    """

    module: tvm.IRModule
    target: tvm.target.Target
    device: Any
    borrow: Borrow | None = None
    _signature: Signature = field(init=False)
    _is_confirmed: bool = False
    _expected: dict[int, TaskOutput] = field(init=False, default_factory=dict)
    _given: dict[int, np.ndarray] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._signature = signature(self.module["main"])

    @property
    def held_bytes(self) -> int:
        """Memory of the outputs; the tables of the arguments are smaller."""
        return sum(each.value.nbytes for each in self._expected.values())

    def verdict(
        self,
        code: Any,
        shapes: Sequence[tuple[int, ...]],
        scheduled: str | tvm.IRModule | None,
        is_default: bool = False,
    ) -> Verdict:
        """The verdict on a candidate.

        The arguments are those of `Checker.check`; ``is_default`` says
        whether it has the default schedule, whose outputs are the reference.
        """
        if isinstance(scheduled, str):
            scheduled = module_of(scheduled) if PREPROC in scheduled else None
        try:
            blocks = self._layouts(shapes, scheduled)
            run = partial(self._run, code, shapes, self.device, blocks)
            if not self._expected:
                self._expect(self._most_telling(run if is_default else self._default()))
            began_s = time.perf_counter()
            fault = self._difference(run(False))
            spent_s = time.perf_counter() - began_s
            if fault and not self._is_confirmed:
                self._confirm()
                fault = self._difference(run(False))
        except LayoutError as error:
            return Verdict(str(error))
        return Verdict(fault, spent_s)

    def _most_telling(self, run: _Run) -> dict[int, np.ndarray]:
        """Draw the arguments that show most; returns the outputs for them."""
        outputs = self._drawn(run)
        if is_positive := not _is_usable(outputs):
            outputs = self._drawn(run, is_positive)
        if any(each.is_factor for each in self._signature.parameters):
            shown = {power: _most_common(self._drawn(run, is_positive, power)) for power in _POWERS}
            outputs = self._drawn(run, is_positive, min(shown, key=shown.__getitem__))
        return outputs

    def _drawn(self, run: _Run, positive: bool = False, power: int = 0) -> dict[int, np.ndarray]:
        """Outputs for arguments of which scales are multiplied by two to the ``power``."""
        self._given = {
            place: drawn(self._signature, place, positive=positive, power=power)
            for place, parameter in enumerate(self._signature.parameters)
            if parameter.is_read
        }
        return run(False)

    def _confirm(self) -> None:
        """Replace the expected outputs by those of the unscheduled kernel, and measure noise."""
        takes_long = analyse(None, self.module).flops > _MOST_UNSCHEDULED_FLOPS
        is_default = has_own_device(self.target) or takes_long
        run = self._default() if is_default else self._compiled(self.module)
        moved = {place: value.copy() for place, value in run(True).items()}
        self._expect(run(False), moved)
        self._is_confirmed = True

    def _expect(
        self, outputs: Mapping[int, np.ndarray], moved: Mapping[int, np.ndarray] | None = None
    ) -> None:
        """Keep outputs; ``moved`` are those for arguments that were moved by a rounding."""
        given = self._signature
        for place, value in sorted(outputs.items()):
            may_step = given.takes_steps if value.dtype.kind == "f" else given.has_floats
            apart = None if moved is None else moved[place]
            self._expected[place] = TaskOutput.of(value.copy(), given.length, may_step, apart)

    def _default(self) -> _Run:
        """Runs the kernel with its default schedule, as the import has compiled it."""
        schedule = default_schedule(self.module, self.target)
        if schedule is None:
            return self._compiled(self.module)
        scheduled = schedule.mod
        module = without_layout_block(scheduled)
        shapes = [tuple(shape_of(buffer)) for buffer in module["main"].params]
        return self._compiled(module, shapes, self._layouts(shapes, scheduled))

    def _compiled(
        self,
        module: tvm.IRModule,
        shapes: Sequence[tuple[int, ...]] = (),
        blocks: Mapping[int, Any] | None = None,
    ) -> _Run:
        shapes = shapes or [parameter.shape for parameter in self._signature.parameters]
        store = KernelStore.of(self.target)
        if store is not None:
            built = store.load({"main": module["main"]})
        else:
            with without_checks():
                built = build(module, self.target)
        return partial(self._run, built, shapes, tvm_device(self.target), blocks or {})

    def _layouts(
        self, shapes: Sequence[tuple[int, ...]], scheduled: tvm.IRModule | None
    ) -> dict[int, Any]:
        """The blocks that rewrite a candidate's weight layouts, by number of the argument."""
        blocks = {} if scheduled is None else layout_blocks(scheduled)
        for place, parameter in enumerate(self._signature.parameters):
            is_laid_out = place in blocks and parameter.is_read
            if prod(shapes[place]) != prod(parameter.shape) and not is_laid_out:
                raise LayoutError("a buffer has another size, and nothing says why")
        return blocks

    def _run(
        self,
        code: Any,
        shapes: Sequence[tuple[int, ...]],
        device: Any,
        blocks: Mapping[int, Any],
        moved: bool,
    ) -> dict[int, np.ndarray]:
        """Outputs of a kernel, by number of the parameter; valid until the next run."""
        is_here = device == tvm.cpu(0)
        parameters = self._signature.parameters
        tensors, written = [], {}
        for place, parameter in enumerate(parameters):
            tensor = self._memory(place, shapes[place], parameter.dtype)
            array = np.from_dlpack(tensor)
            self._fill(array, place, blocks.get(place), moved)
            if not is_here:
                tensor = tvm.runtime.tensor(array, device=device)
            tensors.append(tensor)
            if parameter.is_written:
                written[place] = array
        code["main"](*tensors)
        if not is_here:
            written = {place: tensors[place].numpy() for place in written}
        return {place: array.reshape(parameters[place].shape) for place, array in written.items()}

    def _memory(self, place: int, shape: tuple[int, ...], dtype: str) -> Any:
        """A tensor of undefined content."""
        size_bytes = prod(shape) * np.dtype(dtype).itemsize
        if self.borrow is not None and dtype == "float32" and size_bytes >= _LARGE_BYTES:
            lent = self.borrow(place, prod(shape))
            if lent is not None:
                return view_of(lent, shape)
        return tvm.runtime.empty(shape, dtype)

    def _fill(self, array: np.ndarray, place: int, block: Any, moved: bool) -> None:
        """Fill a buffer with its argument; an output with values that show missing writes."""
        given = self._given.get(place)
        if given is None:
            if array.dtype.kind == "f":
                array.fill(np.nan)
            else:
                array.view("uint8").fill(0 if array.dtype.kind == "b" else _POISON)
        elif block is not None:
            if array.size != given.size:
                room = f"{array.size} of {given.size}"
                raise LayoutError(f"its layout has room for {room} weights")
            array.reshape(-1)[addresses_of(block, given.size)] = given.reshape(-1)
        else:
            np.copyto(array.reshape(given.shape), given)
        if moved and given is not None and array.dtype.name in ROUNDING:
            unit = ROUNDING[array.dtype.name]
            random = np.random.default_rng(place)
            array *= random.uniform(1 - unit, 1 + unit, array.shape).astype(array.dtype)

    def _difference(self, found: dict[int, np.ndarray]) -> str:
        for place, expected in self._expected.items():
            fault = expected.fault(found[place])
            if fault:
                return f"output {place}: {fault}" if len(self._expected) > 1 else fault
        return ""


def _is_usable(outputs: Mapping[int, np.ndarray]) -> bool:
    """Whether most elements of each output are finite, so that a comparison can find a fault."""
    return all(
        2 * np.count_nonzero(np.isfinite(each)) > each.size
        for each in outputs.values()
        if each.size
    )


def _most_common(outputs: Mapping[int, np.ndarray]) -> float:
    """The largest share that one value has in an output: with less, more faults are seen."""
    shares = [0.0]
    for each in outputs.values():
        some = each.reshape(-1)[:_SAMPLED]
        _, counts = np.unique(some, return_counts=True)
        shares.append(float(counts.max(initial=0)) / max(1, some.size))
    return round(max(shares), 2)


# Memory of all references together, as a part of the machine's. An evicted reference is computed
# again if its task comes back.
_LEAST_HELD_BYTES, _HELD_PART = 2**28, 1 / 16


class Checker:
    """Checks built candidates in the process that built them.

    Parameters
    ----------
    target : Target
    device : Device, optional
        Where candidates run, if not in this process. References are still computed here.
    borrow : callable, optional
        Lends memory for large arguments.
    """

    def __init__(
        self,
        target: tvm.target.Target,
        device: Any = None,
        borrow: Borrow | None = None,
    ) -> None:
        self._target = target if device is None else tvm.target.Target("llvm")
        self._device = device if device is not None else tvm_device(target)
        self._references: OrderedDict[str, TaskReference] = OrderedDict()
        self._borrow = borrow
        whole_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._most_held_bytes = max(_LEAST_HELD_BYTES, int(_HELD_PART * whole_bytes))

    def check(
        self,
        code: Any,
        shapes: Sequence[tuple[int, ...]],
        scheduled: str | tvm.IRModule | None,
        wanted: ScheduleCheck,
    ) -> Verdict:
        """Run a candidate once and compare every element.

        Parameters
        ----------
        code : Module
            The compiled candidate; its ``main`` takes weights in their new layout.
        shapes : sequence of tuple of int
            Shapes of its buffers.
        scheduled : str or IRModule or None
            Its scheduled module, or that as TVM JSON, which takes longer; None if it has no block
            that rewrites layouts.
        wanted : ScheduleCheck
        """
        reference = self._references.get(wanted.key)
        if reference is None:
            module = module_of(wanted.module)
            reference = TaskReference(module, self._target, self._device, self._borrow)
            self._references[wanted.key] = reference
        self._references.move_to_end(wanted.key)
        # Elsewhere, the default schedule is another one.
        is_default = wanted.is_default and self._device == tvm_device(self._target)
        verdict = reference.verdict(code, shapes, scheduled, is_default)
        while len(self._references) > 1 and self.held_bytes > self._most_held_bytes:
            self._references.popitem(last=False)
        return verdict

    @property
    def held_bytes(self) -> int:
        """Memory of references."""
        return sum(each.held_bytes for each in self._references.values())
