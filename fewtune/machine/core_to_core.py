"""Measures the time of data from one core to another, which a host may change at any moment.

A host may move one of a virtual machine's two cores to another part of the processor, with another
last-level cache. Both cores and their caches are then as fast as before, but data that the other
core wrote are farther away. An EPYC (Zen 4) was seen in both states for a tenth to ten seconds at a
time, whatever ran: 128 KB took 17 or 62 us, SqueezeNet took 2.6 or 4.6 ms, onnxruntime 3.6 or 5.5
ms. At times the host puts both on one physical core: data then take less than half the time, and
YOLOv3 took 112 instead of 60 ms.

Neither multiply-adds in registers (`fewtune.timing.calibration`) nor the steal time
(`fewtune.machine.steal_time`) show this. Times of different states are not comparable.
Measurements in turns are affected alike.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import numpy as np

from fewtune.runtime.target import device_of, has_own_device

if TYPE_CHECKING:
    from fewtune.runtime.tvm import tvm

# Bytes from each core: they fit its nearest caches, and starting the threads takes little in
# comparison.
_BYTES = 2**16
_VECTOR = 16
_CALLS = 5
# Times of different states differ by 2.5 and 3.6 times; with different clocks by 1.25 to 1.5 times.
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
        # Imported here: a report only compares states, and TVM takes most of a second to load.
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
        """Seconds of 64 KB from each core to the next one: the median of a few times."""
        taken_s = []
        for _ in range(_CALLS):
            began_s = time.perf_counter()
            self.run()
            taken_s.append((time.perf_counter() - began_s) / 2)
        return statistics.median(taken_s)


def hand_over(target: tvm.target.Target, threads: int) -> HandOver | None:
    """The meter of a target's cores; None for a single core, or if a GPU or a board computes."""
    return None if has_own_device(target) or threads < 2 else HandOver(target, threads)


def same_state(first_s: float, second_s: float) -> bool:
    """Whether two hand-over times are of the same state of the cores."""
    return max(first_s, second_s) <= _OTHER * min(first_s, second_s)
