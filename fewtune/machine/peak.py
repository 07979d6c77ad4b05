"""The machine's peak: multiply-adds a second and bytes a second, both measured.

A kernel's GFLOPS mean little without the machine's own. The peak is measured, not taken from a data
sheet: a shared host leaves only a part of its clocks and vector units.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.script import tirx as T  # noqa: N812 (TVMScript's own name, which its parser expects)

from fewtune.machine.affinity import apart_from_the_pool
from fewtune.machine.byte_products import OPERAND_REGISTERS, STEPS, ByteProducts, fastest_s
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.target import device_of, has_own_device
from fewtune.runtime.tvm import build, set_threads, tvm
from fewtune.task.analysis import FLOAT32_BYTES
from fewtune.tvm_compat.intrinsics import frames_without_source

_REPEATS = 300
_STREAM_BYTES = 256 * 2**20
_STREAM_BUFFERS = 3
_STREAM_REPEATS = 8


@frames_without_source()
def multiply_add_kernel(threads: int, accumulators: int, lanes: int, steps: int) -> tvm.IRModule:
    """Independent fused multiply-adds on values that stay in vector registers.

    Parameters
    ----------
    threads : int
    accumulators : int
        Vectors of each thread; more than a multiply-add's latency times its rate, so that none
        waits.
    lanes : int
        float32 values of a vector register.
    steps : int
        Multiply-adds of each accumulator in one call.

    Returns
    -------
    module : IRModule
        ``main`` takes a factor and a summand, ``(2, lanes)``, and writes the accumulators,
        ``(threads, accumulators * lanes)``. `multiply_add_flops` counts its operations.
    """
    width = accumulators * lanes

    @T.prim_func(s_tir=True)
    def main(
        operands: T.Buffer((2, lanes), "float32"),
        sums: T.Buffer((threads, width), "float32"),
    ) -> None:
        # Without it, operands might alias the output, and all values would go through memory.
        T.func_attr({"tirx.noalias": True})
        for thread in T.parallel(threads):
            with T.sblock("accumulate"):
                held = T.sblock_alloc_buffer((width,), "float32", scope="local")
                for place in T.unroll(accumulators):
                    for lane in T.vectorized(lanes):
                        # Equal accumulators would be computed once.
                        held[place * lanes + lane] = operands[1, lane] * T.float32(place)
                for _step in T.serial(steps):
                    for place in T.unroll(accumulators):
                        for lane in T.vectorized(lanes):
                            held[place * lanes + lane] = (
                                held[place * lanes + lane] * operands[0, lane] + operands[1, lane]
                            )
                for place in T.unroll(accumulators):
                    for lane in T.vectorized(lanes):
                        sums[thread, place * lanes + lane] = held[place * lanes + lane]

    return tvm.IRModule({"main": main})


def multiply_add_flops(threads: int, accumulators: int, lanes: int, steps: int) -> int:
    """Floating-point operations of one call of `multiply_add_kernel`."""
    return 2 * threads * accumulators * lanes * steps


@frames_without_source()
def triad_kernel(threads: int, lanes: int, vectors: int) -> tvm.IRModule:
    """STREAM's triad (McCalpin 1995), which reads two buffers and writes a third.

    Parameters
    ----------
    threads : int
    lanes : int
        float32 values of a vector register.
    vectors : int
        Vectors of each buffer that a thread handles.

    Returns
    -------
    module : IRModule
        ``main`` takes three buffers of ``(threads, vectors * lanes)``; the last is written.
    """
    width = vectors * lanes

    @T.prim_func(s_tir=True)
    def main(
        first: T.Buffer((threads, width), "float32"),
        second: T.Buffer((threads, width), "float32"),
        written: T.Buffer((threads, width), "float32"),
    ) -> None:
        T.func_attr({"tirx.noalias": True})
        for thread in T.parallel(threads):
            with T.sblock("triad"):
                for vector in T.serial(vectors):
                    for lane in T.vectorized(lanes):
                        written[thread, vector * lanes + lane] = first[
                            thread, vector * lanes + lane
                        ] + second[thread, vector * lanes + lane] * T.float32(3)

    return tvm.IRModule({"main": main})


class MultiplyAdd:
    """The multiply-add kernel, built for a CPU.

    Parameters
    ----------
    target : Target
    threads : int
        TVM's pool must have as many.

    Attributes
    ----------
    flops : int
        Of one call.
    """

    def __init__(self, target: tvm.target.Target, threads: int) -> None:
        traits = CpuTraits.of(target)
        lanes = traits.lanes("float32")
        accumulators = traits.registers - OPERAND_REGISTERS
        self.flops = multiply_add_flops(threads, accumulators, lanes, STEPS)
        self._device = device_of(target)
        self._built = build(multiply_add_kernel(threads, accumulators, lanes, STEPS), target)
        # Each step halves a value and adds one, so values stay near two: no denormals, no overflow.
        operands = np.repeat(np.array([[0.5], [1.0]], "float32"), lanes, axis=1)
        sums = np.zeros((threads, accumulators * lanes), "float32")
        self._arguments = [tvm.runtime.tensor(value, self._device) for value in (operands, sums)]
        self._main = self._built["main"]

    def run(self) -> np.ndarray:
        """Run it once; returns the accumulators, ``(threads, accumulators * lanes)``."""
        self._main(*self._arguments)
        return self._arguments[1].numpy()

    def once_s(self) -> float:
        """Seconds of one call, the microseconds of calling it included."""
        began_s = time.perf_counter()
        self._main(*self._arguments)
        return time.perf_counter() - began_s

    def fastest_s(self, repeats: int) -> float:
        """Seconds of the fastest of ``repeats`` calls, after one that is not timed."""
        return fastest_s(self._built, self._device, self._arguments, repeats)


class Triad:
    """STREAM's triad, built for a CPU.

    Parameters
    ----------
    target : Target
    threads : int
        TVM's pool must have as many.
    whole_bytes : int
        Of its three buffers together; no fewer than fill a vector a thread.

    Attributes
    ----------
    moved_bytes : int
        That one call reads and writes.
    """

    def __init__(self, target: tvm.target.Target, threads: int, whole_bytes: int) -> None:
        lanes = CpuTraits.of(target).lanes("float32")
        vectors = max(1, whole_bytes // (_STREAM_BUFFERS * FLOAT32_BYTES * threads * lanes))
        self._shape = (threads, vectors * lanes)
        self.moved_bytes = _STREAM_BUFFERS * FLOAT32_BYTES * threads * vectors * lanes
        self.built = build(triad_kernel(threads, lanes, vectors), target)
        self._device = device_of(target)

    def buffers(self) -> list[Any]:
        """Memory for it, new."""
        held = [
            tvm.runtime.empty(self._shape, "float32", self._device) for _ in range(_STREAM_BUFFERS)
        ]
        for buffer in held:
            # It has to be written: all unwritten pages are the same page of zeros.
            np.from_dlpack(buffer).fill(1)
        return held


@dataclass(frozen=True)
class Peak:
    """The measured peak of a machine.

    Attributes
    ----------
    gflops : float
        Billions of float32 operations a second, a multiply-add counted as two.
    memory_gb_s : float
        10^9 bytes read and written a second by STREAM's triad, beyond the caches.
    byte_gops : float
        Billions of operations a second of products of bytes, counted alike. It equals that of
        floats where it is 0: no instruction multiplies four bytes and sums them, or it was not
        measured.
    """

    gflops: float
    memory_gb_s: float
    byte_gops: float = 0.0

    def larger(self, other: Peak) -> Peak:
        """The larger of each figure: other processes can only have lowered them."""
        return Peak(
            max(self.gflops, other.gflops),
            max(self.memory_gb_s, other.memory_gb_s),
            max(self.byte_gops, other.byte_gops),
        )

    def least_ms(self, flops: float, byte_flops: float) -> float:
        """Milliseconds that so many operations take at least, those of bytes among them."""
        return (flops - byte_flops) / self.gflops / 1e6 + byte_flops / (
            self.byte_gops or self.gflops
        ) / 1e6


class PeakMeter:
    """Measures a CPU's peak.

    Parameters
    ----------
    target : Target
        Of a CPU.
    threads : int
    with_bytes : bool
        Whether products of bytes are measured, too.
    """

    def __init__(self, target: tvm.target.Target, threads: int, *, with_bytes: bool = True) -> None:
        set_threads(threads)
        self._device = device_of(target)
        self._multiply_add = MultiplyAdd(target, threads)
        self._triad = Triad(target, threads, _STREAM_BYTES)
        # Held from one measurement to the next: filling them takes longer than reading them.
        self._buffers = self._triad.buffers()
        self._byte_products = ByteProducts.of(target, threads) if with_bytes else None

    def measure(self) -> Peak:
        """Measure for about a fifth of a second; the fastest call counts."""
        with apart_from_the_pool():
            call_s = self._multiply_add.fastest_s(_REPEATS)
            bytes_of = self._byte_products
            byte_gops = bytes_of.operations / bytes_of.fastest_s(_REPEATS) / 1e9 if bytes_of else 0
            stream_s = fastest_s(self._triad.built, self._device, self._buffers, _STREAM_REPEATS)
        moved_bytes = self._triad.moved_bytes
        gflops = self._multiply_add.flops / call_s / 1e9
        return Peak(gflops, moved_bytes / stream_s / 1e9, byte_gops)


def peak_meter(
    target: tvm.target.Target, threads: int, *, with_bytes: bool = True
) -> PeakMeter | None:
    """The meter of a target's machine; None if kernels run on a GPU or a board."""
    return None if has_own_device(target) else PeakMeter(target, threads, with_bytes=with_bytes)
