"""Long rows that MetaSchedule leaves scalar: vectorised, by instructions that a log holds."""

from __future__ import annotations

import numpy as np
import pytest
from tvm.script import tirx as T  # noqa: N812 (as TVMScript is written)

from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import build, tvm
from fewtune.schedule.space.search_space import vectorize_long_rows
from fewtune.storage.database import replay
from fewtune.trial.trial import Trial, trace_key

TRAITS = CpuTraits(vector_bytes=32, registers=14, operands=1, threads=2, in_flight=8)
TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "haswell", "num-cores": 2})
UNROLL = "pragma_auto_unroll_max_step"


def summed(rows: int, columns: int, dtype: str = "float32") -> tvm.IRModule:
    """Sums over an axis, and a bias added: the block whose rows may be long."""

    @T.prim_func(s_tir=True)
    def main(
        a: T.Buffer((rows, 6, columns), dtype),
        bias: T.Buffer((columns,), dtype),
        out: T.Buffer((rows, columns), dtype),
    ) -> None:
        total = T.sblock_alloc_buffer((rows, columns), dtype)
        for i, j, k in T.grid(rows, columns, 6):
            with T.sblock("total"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    total[vi, vj] = T.Cast(dtype, 0)
                total[vi, vj] = total[vi, vj] + a[vi, vk, vj]
        for i, j in T.grid(rows, columns):
            with T.sblock("biased"):
                vi, vj = T.axis.remap("SS", [i, j])
                out[vi, vj] = total[vi, vj] + bias[vj]

    return tvm.IRModule({"main": main})


def scheduled(module: tvm.IRModule, parts: int = 2) -> tvm.s_tir.Schedule:
    """Parts in parallel, each with the rest of its rows; nothing is vectorised."""
    sch = tvm.s_tir.Schedule(module)
    biased = sch.get_sblock("biased")
    outer, _ = sch.split(sch.get_loops(biased)[0], [parts, None])
    sch.parallel(outer)
    sch.compute_at(sch.get_sblock("total"), outer)
    return sch


def loops(sch: tvm.s_tir.Schedule, name: str) -> list[tuple[int, int]]:
    """Kind and extent of a block's loops."""
    found = [sch.get(loop) for loop in sch.get_loops(sch.get_sblock(name))]
    return [(int(loop.kind), int(loop.extent)) for loop in found]


SERIAL, PARALLEL, VECTORIZED = (
    int(getattr(tvm.tirx.ForKind, kind)) for kind in ("SERIAL", "PARALLEL", "VECTORIZED")
)


def test_a_long_row_is_vectors_and_is_not_unrolled_where_there_are_many():
    sch = scheduled(summed(8, 128))
    vectorize_long_rows(sch, TRAITS)
    # Four rows of 16 vectors of 8: more than 14 registers hold.
    assert loops(sch, "biased") == [(PARALLEL, 2), (SERIAL, 4), (SERIAL, 16), (VECTORIZED, 8)]
    bounds = [sch.get(loop).annotations for loop in sch.get_loops(sch.get_sblock("biased"))]
    assert [int(each.get(UNROLL, -1)) for each in bounds] == [-1, 0, -1, -1]


@pytest.mark.parametrize("module", [summed(8, 100), summed(8, 8), summed(8, 128, "float64")])
def test_rows_of_no_whole_vectors_or_of_other_types_stay(module):
    sch = scheduled(module)
    before = sch.mod
    vectorize_long_rows(sch, TRAITS)
    tvm.ir.assert_structural_equal(sch.mod, before)


def test_a_sum_and_what_is_vectorised_stay():
    sch = scheduled(summed(8, 128))
    _, inner = sch.split(sch.get_loops(sch.get_sblock("biased"))[-1], [None, 32])
    sch.vectorize(inner)
    before = sch.mod
    vectorize_long_rows(sch, TRAITS)
    tvm.ir.assert_structural_equal(sch.mod, before)


def test_a_log_holds_it_and_results_are_the_same():
    module = summed(8, 128)
    plain, sch = scheduled(module), scheduled(module)
    vectorize_long_rows(sch, TRAITS)
    again = replay(module, Trial(trace_key(sch.trace), None, None), TARGET)
    tvm.ir.assert_structural_equal(again.mod, sch.mod)
    random = np.random.default_rng(0)
    given = [random.random(shape, dtype="float32") for shape in ((8, 6, 128), (128,))]
    outputs = []
    for each in (plain, sch):
        out = tvm.runtime.tensor(np.zeros((8, 128), dtype="float32"))
        build(each.mod, TARGET)["main"](*map(tvm.runtime.tensor, given), out)
        outputs.append(out.numpy())
    np.testing.assert_array_equal(*outputs)
    np.testing.assert_allclose(outputs[0], given[0].sum(axis=1) + given[1], rtol=1e-6)
