"""The reference of one task, and the comparison of a candidate with it.

The interpreter computes the reference. A kernel that it does not support is compiled with its
default schedule and the original weight layout. If a candidate differs from the reference, the
kernel without any schedule decides.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from fewtune.runtime.target import device_of, has_own_device
from fewtune.runtime.tvm import build, module_of, tvm
from fewtune.schedule.defaults.default import default_schedule
from fewtune.schedule_check.arguments import Signature, drawn, signature
from fewtune.schedule_check.buffers import Buffers, copy, memory_bytes
from fewtune.schedule_check.expected import Expected, is_usable
from fewtune.schedule_check.interpreter import outputs_of
from fewtune.schedule_check.layout_maps import PREPROC, LayoutError, lay_out, layout_blocks
from fewtune.schedule_check.numbers import ROUNDING, UnknownError
from fewtune.schedule_check.reference_cache import CachedReference, ReferenceCache
from fewtune.task.analysis import analyse
from fewtune.task.weight_layout import FREE

# Kernels of so many operations take a few seconds without a schedule.
_MOST_UNSCHEDULED_FLOPS = 4e9
# Bytes of integers that a kernel has not written: an unlikely result.
_POISON = 0xA5


@dataclass
class Reference:
    """Test arguments and expected outputs of one task.

    Parameters
    ----------
    key : str
        Identifies the task: equal for equal kernels.
    module : IRModule
        The unscheduled kernel.
    target : Target
        For kernels that compute the reference.
    device : Device
        Where candidates run.
    buffers : Buffers
        Memory of arguments, shared with other tasks.
    cache : ReferenceCache
        References that other processes have computed.

    Attributes
    ----------
    spent_s : float
        Seconds that the reference has taken.
    """

    key: str
    module: tvm.IRModule
    target: tvm.target.Target
    device: Any
    buffers: Buffers
    cache: ReferenceCache
    spent_s: float = 0.0
    _signature: Signature = field(init=False)
    _given: list[Any] = field(init=False, default_factory=list)
    _expected: dict[int, Expected] = field(init=False, default_factory=dict)
    _is_positive: bool = False
    _is_confirmed: bool = False

    @property
    def held_bytes(self) -> int:
        given = sum(memory_bytes(each) for each in self._given if each is not None)
        return given + sum(each.held_bytes for each in self._expected.values())

    def fault_of(
        self,
        code: Any,
        shapes: Sequence[tuple[int, ...]],
        scheduled: str | tvm.IRModule | None,
    ) -> str:
        """What is wrong with a candidate; empty if its outputs are right.

        Parameters
        ----------
        code, shapes, scheduled
            As for `fewtune.schedule_check.check.Checker.check`.
        """
        self._prepare()
        if isinstance(scheduled, str):
            scheduled = module_of(scheduled) if PREPROC in scheduled else None
        try:
            blocks = self._layouts(shapes, scheduled)
            fault = self._difference(self._run(code, shapes, self.device, blocks))
            if fault and not self._is_confirmed:
                self._confirm()
                fault = self._difference(self._run(code, shapes, self.device, blocks))
        except LayoutError as error:
            return str(error)
        return fault

    def _prepare(self) -> None:
        if self._expected:
            return
        began_s = time.perf_counter()
        self._signature = signature(self.module["main"])
        cached = self.cache.read(self.key)
        if cached is not None:
            self._draw(positive=cached.positive)
            self._expected, self._is_confirmed = cached.expected, cached.confirmed
        else:
            for positive in (False, True):
                self._draw(positive=positive)
                self._expected = self._interpreted()
                if is_usable(list(self._expected.values())):
                    break
            self._write(began_s)
        self.spent_s += time.perf_counter() - began_s

    def _draw(self, *, positive: bool) -> None:
        self._is_positive = positive
        self._given = [
            drawn(self._signature, place, positive=positive) if parameter.is_read else None
            for place, parameter in enumerate(self._signature.parameters)
        ]

    def _write(self, began_s: float) -> None:
        found = CachedReference(self._expected, self._is_positive, self._is_confirmed)
        self.cache.write(self.key, found, time.perf_counter() - began_s)

    def _interpreted(self) -> dict[int, Expected]:
        try:
            outputs = outputs_of(self.module["main"], self._given)
        except (UnknownError, MemoryError):
            return self._by_default()
        return {
            place: Expected.of(made.value, made.error, made.dtype)
            for place, made in outputs.items()
        }

    def _by_default(self) -> dict[int, Expected]:
        """Compute by the default schedule, with the original weight layout."""
        function = self.module["main"]
        if FREE in (function.attrs or {}):
            function = function.without_attr(FREE)
        plain = tvm.IRModule({"main": function})
        schedule = default_schedule(plain, self.target)
        return self._computed(plain if schedule is None else schedule.mod)

    def _confirm(self) -> None:
        """Correct the expected outputs by those of the unscheduled kernel, if they differ."""
        began_s = time.perf_counter()
        self._is_confirmed = True
        takes_long = analyse(None, self.module).flops > _MOST_UNSCHEDULED_FLOPS
        if has_own_device(self.target) or takes_long:
            found = self._by_default()
        else:
            found = self._computed(self.module)
        if any(not self._expected[place].agrees(each.value) for place, each in found.items()):
            self._expected = found
        self._write(began_s)
        self.spent_s += time.perf_counter() - began_s

    def _computed(self, module: tvm.IRModule) -> dict[int, Expected]:
        shapes = [parameter.shape for parameter in self._signature.parameters]
        code = build(module, self.target)
        outputs = self._run(code, shapes, device_of(self.target), {})
        given = self._signature
        is_rounded = any(parameter.dtype in ROUNDING for parameter in given.parameters)
        return {
            place: Expected.from_kernel(
                value.copy(), given.parameters[place].dtype, given.length, is_rounded
            )
            for place, value in outputs.items()
        }

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
    ) -> dict[int, np.ndarray]:
        """Outputs of a kernel, by number of the parameter; valid until the next run."""
        is_here = device == tvm.cpu(0)
        tensors, written = [], {}
        for place, parameter in enumerate(self._signature.parameters):
            tensor, array = self.buffers.tensor(place, shapes[place], parameter.dtype)
            self._fill(array, place, blocks.get(place))
            if not is_here:
                tensor = tvm.runtime.tensor(array, device=device)
            tensors.append(tensor)
            if parameter.is_written:
                written[place] = array
        code["main"](*tensors)
        if not is_here:
            written = {place: tensors[place].numpy() for place in written}
        return {
            place: self._held(array, self._signature.parameters[place])
            for place, array in written.items()
        }

    def _fill(self, array: np.ndarray, place: int, block: Any) -> None:
        """Fill a buffer with its argument; an output with values that show missing writes."""
        given = self._given[place]
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
            copy(given.reshape(array.shape), array)

    @staticmethod
    def _held(array: np.ndarray, parameter: Any) -> np.ndarray:
        if parameter.dtype == "float16":
            array = array.astype("float32")
        return array.reshape(parameter.shape)

    def _difference(self, found: dict[int, np.ndarray]) -> str:
        for place, expected in sorted(self._expected.items()):
            fault = expected.fault(found[place])
            if fault:
                return f"output {place}: {fault}" if len(self._expected) > 1 else fault
        return ""
