"""Runs a candidate once and compares every output element with the task's reference.

The reference is computed once for each task (`fewtune.schedule_check.task_reference`).
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fewtune.runtime.target import tvm_device
from fewtune.runtime.tvm import module_of, tvm
from fewtune.schedule_check.task_reference import Buffers, ReferenceCache, TaskReference

# Memory of all references together, as a part of the machine's. An evicted reference is computed
# again if its task comes back.
_LEAST_HELD_BYTES, _HELD_PART = 2**28, 1 / 16


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

    ``spent_s`` are the seconds of the check; ``reference_s``, of these, those of the reference.
    """

    fault: str
    spent_s: float
    reference_s: float

    @property
    def is_right(self) -> bool:
        return not self.fault


class Checker:
    """Checks built candidates in the process that built them.

    Parameters
    ----------
    target : Target
    device : Device, optional
        Where candidates run, if not in this process. References are still computed here.
    borrow : callable, optional
        Lends memory for large arguments (`Buffers`).
    """

    def __init__(
        self,
        target: tvm.target.Target,
        device: Any = None,
        borrow: Callable[[int, int], Any] | None = None,
    ) -> None:
        self._target = target if device is None else tvm.target.Target("llvm")
        self._device = device if device is not None else tvm_device(target)
        self._references: OrderedDict[str, TaskReference] = OrderedDict()
        self._buffers, self._cache = Buffers(borrow), ReferenceCache()
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
        began_s = time.perf_counter()
        reference = self._reference(wanted)
        before_s = reference.spent_s
        # Elsewhere, the default schedule is another one.
        is_default = wanted.is_default and self._device == tvm_device(self._target)
        fault = reference.fault_of(code, shapes, scheduled, is_default)
        self._evict()
        spent_s = time.perf_counter() - began_s
        return Verdict(fault, spent_s, reference.spent_s - before_s)

    def prepare(self, wanted: ScheduleCheck) -> None:
        """Compute a task's reference, for this process and, by the cache, for the others."""
        self._reference(wanted).prepare()
        self._evict()

    def _reference(self, wanted: ScheduleCheck) -> TaskReference:
        reference = self._references.get(wanted.key)
        if reference is None:
            reference = TaskReference(
                wanted.key,
                module_of(wanted.module),
                self._target,
                self._device,
                self._buffers,
                self._cache,
            )
            self._references[wanted.key] = reference
        self._references.move_to_end(wanted.key)
        return reference

    @property
    def held_bytes(self) -> int:
        """Memory of references and buffers."""
        references = sum(each.held_bytes for each in self._references.values())
        return references + self._buffers.held_bytes

    def _evict(self) -> None:
        while len(self._references) > 1 and self.held_bytes > self._most_held_bytes:
            self._references.popitem(last=False)
