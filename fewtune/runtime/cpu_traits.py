"""The traits of a CPU that schedules depend on: vectors, registers, threads."""

from __future__ import annotations

from dataclasses import dataclass

from fewtune.runtime.dot_products import PLAIN, form_of
from fewtune.runtime.target import architecture
from fewtune.runtime.tvm import has_feature, tvm

_HALVES_VECTORS = "znver4"


@dataclass(frozen=True)
class CpuTraits:
    """The traits of a CPU target that decide a default schedule.

    Attributes
    ----------
    vector_bytes : int
        Width of a vector register.
    registers : int
        Vector registers that accumulators may fill; some are left for operands.
    operands : int
        With so many accumulators, the registers left for the operands that stay in registers: a
        tile's rows or its vectors, whichever are fewer.
    threads : int
        Cores that share a parallel loop.
    in_flight : int
        Multiply-adds of vectors that must be in flight for a core's peak: their latency in cycles
        times the number that it begins in one cycle.
    dot : str
        How it multiplies words of four bytes (`fewtune.runtime.dot_products`).
    """

    vector_bytes: int
    registers: int
    operands: int
    threads: int
    in_flight: int
    dot: str = PLAIN

    @staticmethod
    def of(target: tvm.target.Target) -> CpuTraits:
        """Read the traits off a target's ``mcpu`` and ``num-cores``."""
        threads = max(1, int(target.attrs.get("num-cores", 1) or 1))
        dot = form_of(lambda feature: has_feature(target, feature))
        if architecture(target) == "aarch64":
            # NEON: 32 registers of four lanes. With 28 of them as accumulators LLVM stores and
            # loads four in every step of a product's inner loop, with 24 none.
            return CpuTraits(16, 24, 7, threads, 8, dot)
        wide = has_feature(target, "avx512f")
        # Zen 4 takes two cycles for the two halves of a wide vector.
        in_flight = 4 if wide and str(target.attrs.get("mcpu", "")) == _HALVES_VECTORS else 8
        # One of AVX2's sixteen, and of AVX-512's 32, is for what passes: 13 rows of a vector fit,
        # 7 rows of two do not. AVX-512 could spread an operand on its way from memory, but LLVM
        # does not count on it: with 7 rows of four it stores and loads every sum in every step,
        # 80 instead of 210 GFLOPS (an EPYC), and in none of 50 tasks was that the fastest tile.
        vector_bytes, registers, operands = (64, 28, 3) if wide else (32, 14, 1)
        return CpuTraits(vector_bytes, registers, operands, threads, in_flight, dot)

    def holds(self, rows: int, vectors: int) -> bool:
        """Whether registers hold a tile: its accumulators, and the operands that stay."""
        accumulators = rows * vectors
        held = accumulators + min(rows, vectors)
        return accumulators <= self.registers and held <= self.registers + self.operands

    def lanes(self, data_type: str) -> int:
        """Elements of ``data_type`` in one vector register."""
        return max(1, self.vector_bytes * 8 // max(8, tvm.DataType(data_type).bits))
