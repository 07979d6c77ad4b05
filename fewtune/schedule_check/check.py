"""Candidates of tasks, run once and compared with what the task computes, every element.

What is right is found out once a task (`fewtune.schedule_check.reference`).
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

from fewtune.runtime.target import device_of
from fewtune.runtime.tvm import module_of, tvm
from fewtune.schedule_check.buffers import Buffers
from fewtune.schedule_check.reference import Reference
from fewtune.schedule_check.reference_cache import ReferenceCache

# What the references of several tasks may take together, as a part of the machine's memory. One
# that is let go is found out anew when its task is back.
_LEAST_HELD_BYTES, _HELD_PART = 2**28, 1 / 16


class ScheduleCheck(NamedTuple):
    """What a candidate is compared with, as the process that runs it receives it.

    Attributes
    ----------
    key : str
        Of its task: equal for equal kernels.
    module : str
        The unscheduled kernel as TVM JSON.
    """

    key: str
    module: str


class Verdict(NamedTuple):
    """What became of a check.

    Attributes
    ----------
    fault : str
        What is wrong with the outputs; empty where nothing is.
    spent_s : float
        Seconds that it took, those of the reference included.
    reference_s : float
        Of these, seconds that the reference took.
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
        Where candidates run, if that is not in this process. What is right is then computed here.
    """

    def __init__(self, target: tvm.target.Target, device: Any = None) -> None:
        self._target = target if device is None else tvm.target.Target("llvm")
        self._device = device if device is not None else device_of(target)
        self._references: OrderedDict[str, Reference] = OrderedDict()
        self._buffers, self._kept = Buffers(), ReferenceCache()
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
            Compiled; its ``main`` takes weights that are laid out already.
        shapes : sequence of tuple of int
            Of its buffers.
        scheduled : str or IRModule, optional
            Its scheduled module, or that as TVM JSON, which takes longer; None where no block of
            it lays out weights.
        wanted : ScheduleCheck
        """
        began_s = time.perf_counter()
        reference = self._references.get(wanted.key)
        if reference is None:
            reference = Reference(
                wanted.key,
                module_of(wanted.module),
                self._target,
                self._device,
                self._buffers,
                self._kept,
            )
            self._references[wanted.key] = reference
        self._references.move_to_end(wanted.key)
        before_s = reference.spent_s
        fault = reference.fault_of(code, shapes, scheduled)
        self._evict()
        spent_s = time.perf_counter() - began_s
        return Verdict(fault, spent_s, reference.spent_s - before_s)

    @property
    def held_bytes(self) -> int:
        """Memory that references take, and what kernels are given."""
        references = sum(each.held_bytes for each in self._references.values())
        return references + self._buffers.held_bytes

    def _evict(self) -> None:
        while len(self._references) > 1 and self.held_bytes > self._most_held_bytes:
            self._references.popitem(last=False)
