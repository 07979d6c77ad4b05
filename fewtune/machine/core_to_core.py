"""How long data take from one core to another, just now.

The two cores of a virtual machine need not stay where they are. A host that moves one of them to
another part of the processor, with a last-level cache of its own, leaves both as fast as they were
alone, and the caches, too; but what one core wrote the other one gets from afar. An EPYC (Zen 4)
was seen in both states for a tenth to ten seconds at a time, whatever ran: 128 KB went over in 17
or in 62 us, and SqueezeNet took 2.6 or 4.6 ms, onnxruntime 3.6 or 5.5 ms. At times the host has
both on one core, which they share: data go over in less than half the time, and YOLOv3 took 112
instead of 60 ms.

Multiply-adds in registers (`fewtune.timing.calibration`) do not see it, nor does the time that the
host keeps (`fewtune.machine.steal_time`). Figures of different states are not comparable. What is
measured in turns meets both alike.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import numpy as np

from fewtune.runtime.target import device_of, has_own_device

if TYPE_CHECKING:
    from fewtune.runtime.tvm import tvm

# What each core hands over: its nearest caches hold it, and starting the threads is little of it.
_BYTES = 2**16
_VECTOR = 16
_CALLS = 5
# From one state to the next, 2.5 and 3.6 times; where clocks differ, 1.25 to 1.5 times.
_OTHER = 1.8


class HandOver:
    """Measures how long each core takes to read what the next one wrote.

    Parameters
    ----------
    target : Target
        Of a CPU.
    threads : int
        At least two; TVM's pool must have as many.
    """

    def __init__(self, target: tvm.target.Target, threads: int) -> None:
        # A report asks for states alone, and TVM takes most of a second to load.
        from fewtune.runtime.tvm import build, te, tvm
        from fewtune.task.analysis import FLOAT32_BYTES

        shape = (threads, _BYTES // FLOAT32_BYTES)
        before = te.placeholder(shape, name="before")
        after = te.compute(shape, lambda i, j: before[(i + 1) % threads, j] + 1.0, name="after")
        kernel = te.create_prim_func([before, after]).with_attr("global_symbol", "main")
        sch = tvm.s_tir.Schedule(tvm.IRModule({"main": kernel}))
        thread, element = sch.get_loops(sch.get_sblock("after"))
        sch.parallel(thread)
        _, lane = sch.split(element, [None, _VECTOR])
        sch.vectorize(lane)
        self._main = build(sch.mod, target)["main"]
        ones = np.ones(shape, "float32")
        self._there, self._back = (tvm.runtime.tensor(ones, device_of(target)) for _ in range(2))

    def run(self) -> None:
        """Hand everything over, and back."""
        self._main(self._there, self._back)
        self._main(self._back, self._there)

    def now_s(self) -> float:
        """Seconds that 64 KB of each core take to the next one: the median of a few times."""
        taken_s = []
        for _ in range(_CALLS):
            began_s = time.perf_counter()
            self.run()
            taken_s.append((time.perf_counter() - began_s) / 2)
        return statistics.median(taken_s)


def hand_over(target: tvm.target.Target, threads: int) -> HandOver | None:
    """What measures a target's cores; None where there is but one, or none that compute."""
    return None if has_own_device(target) or threads < 2 else HandOver(target, threads)  # noqa: PLR2004


def same_state(first_s: float, second_s: float) -> bool:
    """Whether the cores were as far from each other when data took the one time, and the other."""
    return max(first_s, second_s) <= _OTHER * min(first_s, second_s)
