"""The machine's peak: multiply-adds a second, measured.

A kernel's GFLOPS mean little without the machine's own. The peak is measured, not taken from a data
sheet: a shared host leaves only a part of its clocks and vector units.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
from tvm.script import tirx as T  # noqa: N812 (TVMScript's own name, which its parser expects)

from fewtune.artifacts import BYTES_AN_INSTRUCTION
from fewtune.machine.host import apart_from_the_pool
from fewtune.runtime import dot_products
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.target import tvm_device
from fewtune.runtime.tvm import build, has_feature, set_threads, tvm
from fewtune.tvm_compat.intrinsics import frames_without_source

# A tenth of a millisecond on two AVX-512 cores: short enough to fall between two disturbances.
STEPS = 14_000
# Vector registers that hold the operands of every multiply-add.
_OPERAND_REGISTERS = 2
_REPEATS = 300


@frames_without_source()
def multiply_add_kernel(
    threads: int, accumulators: int, lanes: int, steps: int, form: str | None = None
) -> tvm.IRModule:
    """Independent multiply-adds on values that stay in vector registers.

    Parameters
    ----------
    threads : int
    accumulators : int
        Vectors of each thread; more than a multiply-add's latency times its rate, so that none
        waits.
    lanes : int
        Values of a vector register.
    steps : int
        Multiply-adds of each accumulator in one call.
    form : str, optional
        Of products of four bytes in int32 (`fewtune.runtime.dot_products`); without it, values are
        float32.

    Returns
    -------
    module : IRModule
        ``main`` takes two operands, ``(2, lanes)``, and writes the accumulators,
        ``(threads, accumulators * lanes)``.
    """
    width = accumulators * lanes
    dtype = "float32" if form is None else "int32"

    def started(operand: Any, place: Any) -> Any:
        # Equal accumulators would be computed once.
        return operand * tvm.tirx.Cast(dtype, place)

    def stepped(total: Any, first: Any, second: Any) -> Any:
        if form is None:
            return total * first + second
        return total + dot_products.dot4(form, first, second)

    @T.prim_func(s_tir=True)
    def main(
        operands: T.Buffer((2, lanes), dtype),
        sums: T.Buffer((threads, width), dtype),
    ) -> None:
        # Without it, operands might alias the output, and all values would go through memory.
        T.func_attr({"tirx.noalias": True})
        for thread in T.parallel(threads):
            with T.sblock("accumulate"):
                held = T.sblock_alloc_buffer((width,), dtype, scope="local")
                for place in T.unroll(accumulators):
                    for lane in T.vectorized(lanes):
                        held[place * lanes + lane] = started(operands[1, lane], place)
                for _step in T.serial(steps):
                    for place in T.unroll(accumulators):
                        for lane in T.vectorized(lanes):
                            held[place * lanes + lane] = stepped(
                                held[place * lanes + lane], operands[0, lane], operands[1, lane]
                            )
                for place in T.unroll(accumulators):
                    for lane in T.vectorized(lanes):
                        sums[thread, place * lanes + lane] = held[place * lanes + lane]

    return tvm.IRModule({"main": main})


class MultiplyAdd:
    """The multiply-add kernel, built for a CPU; TVM's pool must have as many threads.

    ``flops`` are the operations of one call: a product and its addition are two.
    """

    def __init__(self, target: tvm.target.Target, threads: int, form: str | None = None) -> None:
        traits, dtype = CpuTraits.of(target), "float32" if form is None else "int32"
        lanes, accumulators = traits.lanes(dtype), traits.registers - _OPERAND_REGISTERS
        products = 1 if form is None else BYTES_AN_INSTRUCTION
        self.flops = 2 * products * threads * accumulators * lanes * STEPS
        self._device = tvm_device(target)
        self._built = build(multiply_add_kernel(threads, accumulators, lanes, STEPS, form), target)
        # Each step halves a float and adds one, so floats stay near two: no denormals, no overflow.
        pair = [[0.5], [1.0]] if form is None else [[0x01020304], [0x01010101]]
        operands = np.array(pair, dtype).repeat(lanes, axis=1)
        sums = np.zeros((threads, accumulators * lanes), dtype)
        self._arguments = [tvm.runtime.tensor(value, self._device) for value in (operands, sums)]
        self._main = self._built["main"]

    @classmethod
    def of_bytes(cls, target: tvm.target.Target, threads: int) -> MultiplyAdd | None:
        """The kernel of products of four bytes; None where bytes are widened first."""
        form = dot_products.form_of(lambda feature: has_feature(target, feature))
        return cls(target, threads, form) if form in dot_products.AT_ONCE else None

    def run(self) -> np.ndarray:
        """Run it once; returns the accumulators, ``(threads, accumulators * lanes)``."""
        self._main(*self._arguments)
        return self._arguments[1].numpy()

    def once_s(self) -> float:
        """Seconds of one call, the microseconds of calling it included."""
        began_s = time.perf_counter()
        self._main(*self._arguments)
        return time.perf_counter() - began_s

    def giga_a_second(self, repeats: int) -> float:
        """Billions of operations a second in the fastest of ``repeats`` calls."""
        evaluator = self._built.time_evaluator("main", self._device, number=1, repeat=repeats)
        return self.flops / min(map(float, evaluator(*self._arguments).results)) / 1e9


class Peak(NamedTuple):
    """The measured peak of a machine, in billions of operations a second: a multiply-add is two.

    ``byte_gops`` is that of products of bytes. It equals that of floats where it is 0: no
    instruction multiplies four bytes and sums them, or it was not measured.
    """

    gflops: float
    byte_gops: float = 0.0

    def larger(self, other: Peak) -> Peak:
        """The larger of each figure: other processes can only have lowered them."""
        return Peak(*map(max, self, other))

    def least_ms(self, flops: float, byte_flops: float) -> float:
        """Milliseconds that so many operations take at least, those of bytes among them."""
        return (flops - byte_flops) / self.gflops / 1e6 + byte_flops / (
            self.byte_gops or self.gflops
        ) / 1e6


class PeakMeter:
    """Measures a CPU's peak; that of products of bytes only ``with_bytes``."""

    def __init__(self, target: tvm.target.Target, threads: int, *, with_bytes: bool = True) -> None:
        set_threads(threads)
        self._multiply_add = MultiplyAdd(target, threads)
        self._byte_products = MultiplyAdd.of_bytes(target, threads) if with_bytes else None

    def measure(self) -> Peak:
        """Measure for about a tenth of a second; the fastest call counts."""
        with apart_from_the_pool():
            gflops = self._multiply_add.giga_a_second(_REPEATS)
            of_bytes = self._byte_products
            return Peak(gflops, of_bytes.giga_a_second(_REPEATS) if of_bytes else 0.0)
