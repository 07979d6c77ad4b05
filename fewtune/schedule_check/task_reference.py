"""The reference of one task, and the comparison of a candidate with it.

A kernel with its default schedule computes the reference: the import has compared such kernels'
outputs with onnxruntime's. If a candidate differs, the kernel without any schedule decides. Files
in the command's temporary folder share references among its processes. Buffers are reused: the
first use of a page costs more than a copy into it (over a second for VGG 19's first product, else
0.1 s).
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from fewtune.process.temporary import shared_folder
from fewtune.runtime.kernel_store import KernelStore
from fewtune.runtime.target import has_own_device, tvm_device
from fewtune.runtime.tvm import build, module_of, tvm, without_checks
from fewtune.schedule.defaults.default import default_schedule
from fewtune.schedule_check.arguments import ROUNDING, Signature, drawn, signature
from fewtune.task.access import shape_of
from fewtune.task.analysis import analyse
from fewtune.task.layout_maps import PREPROC, LayoutError, lay_out, layout_blocks
from fewtune.task.weight_layout import without_layout_block
from fewtune.tvm_compat.values import view_of

# Arrays of at least this size lie in borrowed memory.
_LARGE_BYTES = 2**24


class Buffers:
    """Tensors of the host, one for each parameter number, which grow as needed.

    ``borrow`` lends memory for the float32 elements of a large parameter, given its number and
    theirs (`fewtune.timing.timer.Buffers.borrow`).
    """

    def __init__(self, borrow: Callable[[int, int], Any] | None = None) -> None:
        self._held: dict[int, Any] = {}
        self._borrow = borrow

    @property
    def held_bytes(self) -> int:
        """Memory that the tensors take."""
        return sum(int(tensor.shape[0]) for tensor in self._held.values())

    def tensor(self, place: int, shape: Sequence[int], dtype: str) -> tuple[Any, np.ndarray]:
        """A tensor of undefined content, and the same memory as an array.

        Both are valid until the next call with this ``place``.
        """
        kind = np.dtype(dtype)
        size = max(1, prod(shape) * kind.itemsize)
        if self._borrow is not None and size >= _LARGE_BYTES and dtype == "float32":
            lent = self._borrow(place, prod(shape))
            if lent is not None:
                return view_of(lent, shape), np.from_dlpack(lent).reshape(shape)
        held = self._held.get(place)
        if held is None or int(held.shape[0]) < size:
            # The smaller one is freed before the larger one is allocated.
            self._held.pop(place, None)
            held = self._held[place] = tvm.runtime.empty((size,), "uint8")
        array = np.from_dlpack(held)[: prod(shape) * kind.itemsize].view(kind).reshape(shape)
        return view_of(held, shape, dtype), array


_FOLDER = "references"
# Most bytes of all files; further references are computed by each process.
_MOST_BYTES = 2**30
_SETTINGS = "settings"


@dataclass
class CachedReference:
    """The reference of one task: outputs by number of the parameter, and how arguments are drawn.

    ``moved`` are outputs for arguments that were moved by a rounding, if that was needed. The
    scales of a kernel in eight bits are multiplied by two to the ``power``.
    """

    outputs: dict[int, np.ndarray] = field(default_factory=dict)
    moved: dict[int, np.ndarray] = field(default_factory=dict)
    positive: bool = False
    power: int = 0


class ReferenceCache:
    """The files of one folder, by default the command's; without a folder, nothing is cached.

    References beyond ``most_bytes`` in all files are not written.
    """

    def __init__(self, folder: Path | None = None, most_bytes: int = _MOST_BYTES) -> None:
        shared = shared_folder() if folder is None else folder
        self._folder = None if shared is None else shared / _FOLDER
        self._most_bytes = most_bytes

    def read(self, key: str) -> CachedReference | None:
        """The reference of a task; None if there is none, or its file is damaged."""
        if self._folder is None:
            return None
        found = CachedReference()
        try:
            with np.load(self._path(key), allow_pickle=False) as content:
                positive, found.power = map(int, content[_SETTINGS])
                for name in set(content.files) - {_SETTINGS}:
                    kind, place = name.split()
                    getattr(found, kind)[int(place)] = content[name]
        except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error):
            return None
        found.positive = bool(positive)
        return found

    def write(self, key: str, found: CachedReference) -> None:
        """Write a reference if there is room."""
        arrays: dict[str, Any] = {_SETTINGS: np.array([found.positive, found.power])}
        arrays |= {f"outputs {place}": array for place, array in found.outputs.items()}
        arrays |= {f"moved {place}": array for place, array in found.moved.items()}
        if self._folder is None:
            return
        try:
            self._folder.mkdir(exist_ok=True)
            held = sum(file.stat().st_size for file in self._folder.iterdir())
            if held + sum(each.nbytes for each in arrays.values()) > self._most_bytes:
                return
            descriptor, beside = tempfile.mkstemp(dir=self._folder, prefix=".")
            try:
                with os.fdopen(descriptor, "wb") as stream:
                    np.savez(stream, **arrays)
                os.replace(beside, self._path(key))
            except BaseException:
                Path(beside).unlink(missing_ok=True)
                raise
        except OSError:
            # The disk is full, or another process of the command has ended with its folder.
            return

    def _path(self, key: str) -> Path:
        assert self._folder is not None
        return self._folder / hashlib.sha256(key.encode()).hexdigest()


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

# Runs a kernel on the arguments, moved by a rounding or not: its outputs, until the next run.
_Run = Callable[[bool], dict[int, np.ndarray]]


@dataclass
class TaskReference:
    """Test arguments and expected outputs of one task.

    Kernels for ``target`` compute the reference; candidates run on ``device``. ``buffers`` are
    shared with other tasks, and ``cache`` with other processes. ``spent_s`` are the seconds that
    the reference has taken.
    """

    key: str
    module: tvm.IRModule
    target: tvm.target.Target
    device: Any
    buffers: Buffers
    cache: ReferenceCache
    spent_s: float = 0.0
    _signature: Signature = field(init=False)
    _found: CachedReference | None = None
    _expected: dict[int, TaskOutput] = field(init=False, default_factory=dict)
    _given: dict[int, np.ndarray] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._signature = signature(self.module["main"])

    @property
    def held_bytes(self) -> int:
        found = self._found or CachedReference()
        arrays = [*found.outputs.values(), *found.moved.values()]
        # An argument may be a view of a smaller table.
        tables = [getattr(each.base, "base", None) for each in self._given.values()]
        return sum(each.nbytes for each in [*arrays, *tables] if isinstance(each, np.ndarray))

    def fault_of(
        self,
        code: Any,
        shapes: Sequence[tuple[int, ...]],
        scheduled: str | tvm.IRModule | None,
        is_default: bool = False,
    ) -> str:
        """What is wrong with a candidate; empty if its outputs are right.

        The arguments are those of `fewtune.schedule_check.check.Checker.check`; ``is_default`` says
        whether it has the default schedule, whose outputs are the reference.
        """
        if isinstance(scheduled, str):
            scheduled = module_of(scheduled) if PREPROC in scheduled else None
        try:
            blocks = self._layouts(shapes, scheduled)
            run = partial(self._run, code, shapes, self.device, blocks)
            self.prepare(run if is_default else None)
            fault = self._difference(run(False))
            if fault and self._found is not None and not self._found.moved:
                began_s = time.perf_counter()
                self._confirm(self._found)
                self.spent_s += time.perf_counter() - began_s
                fault = self._difference(run(False))
        except LayoutError as error:
            return str(error)
        return fault

    def prepare(self, run: _Run | None = None) -> None:
        """Compute the expected outputs if they are not known, by ``run`` if that is given."""
        if self._found is None:
            began_s = time.perf_counter()
            self._expect(self._read() or self._computed(run))
            self.spent_s += time.perf_counter() - began_s

    def _read(self) -> CachedReference | None:
        found = self.cache.read(self.key)
        if found is not None:
            self._draw(found)
        return found

    def _draw(self, wanted: CachedReference) -> None:
        factors = self._signature.factors
        self._given = {
            place: drawn(
                self._signature,
                place,
                positive=wanted.positive,
                size=2.0**wanted.power if place in factors else 1.0,
            )
            for place, parameter in enumerate(self._signature.parameters)
            if parameter.is_read
        }

    def _computed(self, run: _Run | None) -> CachedReference:
        """The outputs for the arguments that show most."""
        run = run or self._default()
        found = CachedReference()
        self._draw(found)
        outputs = run(False)
        if not _is_usable(outputs):
            found.positive = True
            self._draw(found)
            outputs = run(False)
        if self._signature.factors:
            shown = {}
            for found.power in _POWERS:
                self._draw(found)
                shown[found.power] = _most_common(run(False))
            found.power = min(shown, key=shown.__getitem__)
            self._draw(found)
            outputs = run(False)
        found.outputs = {place: value.copy() for place, value in outputs.items()}
        self.cache.write(self.key, found)
        return found

    def _confirm(self, found: CachedReference) -> None:
        """Replace the expected outputs by those of the unscheduled kernel, and measure noise."""
        takes_long = analyse(None, self.module).flops > _MOST_UNSCHEDULED_FLOPS
        is_default = has_own_device(self.target) or takes_long
        run = self._default() if is_default else self._compiled(self.module)
        found.outputs = {place: value.copy() for place, value in run(False).items()}
        found.moved = {place: value.copy() for place, value in run(True).items()}
        self.cache.write(self.key, found)
        self._expect(found)

    def _expect(self, found: CachedReference) -> None:
        given, self._found = self._signature, found
        for place, value in sorted(found.outputs.items()):
            may_step = given.takes_steps if value.dtype.kind == "f" else given.has_floats
            moved = found.moved.get(place)
            self._expected[place] = TaskOutput.of(value, given.length, may_step, moved)

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
            tensor, array = self.buffers.tensor(place, shapes[place], parameter.dtype)
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
            lay_out(block, given, array)
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
