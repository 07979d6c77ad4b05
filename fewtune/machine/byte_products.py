"""Products of bytes at a CPU's highest rate: values stay in vector registers."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from tvm.script import tirx as T  # noqa: N812 (TVMScript's own name, which its parser expects)

from fewtune.artifacts.model import BYTES_AN_INSTRUCTION
from fewtune.runtime import dot_products
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.target import device_of
from fewtune.runtime.tvm import build, has_feature, tvm
from fewtune.tvm_compat.intrinsics import frames_without_source

# A tenth of a millisecond on two AVX-512 cores: short enough to fall between two disturbances.
STEPS = 14_000
# Vector registers that hold the operands of every product.
OPERAND_REGISTERS = 2


@frames_without_source()
def byte_product_kernel(
    threads: int, accumulators: int, lanes: int, steps: int, form: str
) -> tvm.IRModule:
    """Independent sums of products of four bytes, `fewtune.runtime.dot_products`, in registers.

    Parameters
    ----------
    threads, accumulators, lanes, steps : int
        As of `fewtune.machine.peak.multiply_add_kernel`; lanes of int32.
    form : str
        Of the product.

    Returns
    -------
    module : IRModule
        ``main`` takes two vectors of words, ``(2, lanes)``, and writes the sums,
        ``(threads, accumulators * lanes)``.
    """
    width = accumulators * lanes
    dot4 = functools.partial(dot_products.dot4, form)

    @T.prim_func(s_tir=True)
    def main(
        operands: T.Buffer((2, lanes), "int32"),
        sums: T.Buffer((threads, width), "int32"),
    ) -> None:
        T.func_attr({"tirx.noalias": True})
        for thread in T.parallel(threads):
            with T.sblock("accumulate"):
                held = T.sblock_alloc_buffer((width,), "int32", scope="local")
                for place in T.unroll(accumulators):
                    for lane in T.vectorized(lanes):
                        held[place * lanes + lane] = operands[1, lane] * place
                for _step in T.serial(steps):
                    for place in T.unroll(accumulators):
                        for lane in T.vectorized(lanes):
                            held[place * lanes + lane] = held[place * lanes + lane] + dot4(
                                operands[0, lane], operands[1, lane]
                            )
                for place in T.unroll(accumulators):
                    for lane in T.vectorized(lanes):
                        sums[thread, place * lanes + lane] = held[place * lanes + lane]

    return tvm.IRModule({"main": main})


class ByteProducts:
    """The kernel of products of bytes, built for a CPU that has an instruction for them.

    Parameters
    ----------
    target : Target
    threads : int
        TVM's pool must have as many.
    form : str
        From `fewtune.runtime.dot_products.form_of`.

    Attributes
    ----------
    operations : int
        Of one call; a product and its addition are two.
    """

    def __init__(self, target: tvm.target.Target, threads: int, form: str) -> None:
        traits = CpuTraits.of(target)
        lanes, accumulators = traits.lanes("int32"), traits.registers - OPERAND_REGISTERS
        self.operations = 2 * BYTES_AN_INSTRUCTION * threads * accumulators * lanes * STEPS
        self._device = device_of(target)
        module = byte_product_kernel(threads, accumulators, lanes, STEPS, form)
        self._built = build(module, target)
        operands = np.array([[0x01020304], [0x01010101]], "int32").repeat(lanes, axis=1)
        sums = np.zeros((threads, accumulators * lanes), "int32")
        self._arguments = [tvm.runtime.tensor(value, self._device) for value in (operands, sums)]

    @classmethod
    def of(cls, target: tvm.target.Target, threads: int) -> ByteProducts | None:
        """The kernel; None where bytes are widened first."""
        form = dot_products.form_of(lambda feature: has_feature(target, feature))
        return cls(target, threads, form) if form in dot_products.AT_ONCE else None

    def run(self) -> np.ndarray:
        """Run it once; returns the sums, ``(threads, accumulators * lanes)``."""
        self._built["main"](*self._arguments)
        return self._arguments[1].numpy()

    def fastest_s(self, repeats: int) -> float:
        """Seconds of the fastest of ``repeats`` calls, after one that is not timed."""
        return fastest_s(self._built, self._device, self._arguments, repeats)


def fastest_s(built: Any, device: Any, arguments: list[Any], repeats: int) -> float:
    """Seconds of the fastest of ``repeats`` calls of ``main``."""
    evaluator = built.time_evaluator("main", device, number=1, repeat=repeats)
    return min(float(value) for value in evaluator(*arguments).results)
