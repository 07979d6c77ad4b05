"""Prefetched weights: which, when, on which CPUs; and results stay the same."""

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import tvm_ffi

from fewtune.runtime.tvm import build, compiled, has_feature, te, tvm
from fewtune.schedule.prefetch import prefetched
from fewtune.task.access import evaluate, shape_of
from fewtune.task.extract import task_module
from fewtune.workers.worker import argument_shapes
from tests import tuned_tiny

X86 = has_feature(tuned_tiny.target(), "sse2")
DEPTH, COLUMNS, VECTOR, TILE = 64, 64, 16, 4
LINE = 16

only_x86 = pytest.mark.skipif(not X86, reason="weights are prefetched on x86 only")


def matrix_product(rows: int, free: bool = True) -> tvm.IRModule:
    """A product with constant weights."""
    data = te.placeholder((rows, DEPTH), name="data")
    weights = te.placeholder((DEPTH, COLUMNS), name="weights")
    k = te.reduce_axis((0, DEPTH), name="k")
    result = te.compute(
        (rows, COLUMNS), lambda i, j: te.sum(data[i, k] * weights[k, j], axis=k), name="product"
    )
    function = te.create_prim_func([data, weights, result])
    return task_module(function.with_attr("layout_free_buffers", [1]) if free else function)


def tiled(module: tvm.IRModule) -> tvm.IRModule:
    """Panels of a vector of columns, each used for one tile of rows after the other."""
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    sch = tvm.s_tir.Schedule(module)
    block = sch.get_sblock("product")
    i, j, k = sch.get_loops(block)
    panel, lane = sch.split(j, [None, VECTOR])
    tile, row = sch.split(i, [None, TILE])
    sch.reorder(panel, tile, k, row, lane)
    sch.parallel(panel)
    sch.vectorize(lane)
    sch.decompose_reduction(block, k)
    return RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(sch.mod)


@cache
def laid_out(rows: int) -> tvm.IRModule:
    """The tiled product, its weights in panels: what `RewriteLayout` makes of them."""
    sch = tvm.s_tir.Schedule(matrix_product(rows))
    block = sch.get_sblock("product")
    sch.transform_layout(
        block,
        ("read", 1),
        lambda k, j: [j // VECTOR, k, j % VECTOR],
        assume_injective_transform=True,
    )
    return tiled(sch.mod)


def prefetches(statement: Any, loops: list[Any]) -> Iterator[tuple[Any, list[Any]]]:
    """The index of every prefetch, with the loops around it."""
    kind = type(statement).__name__
    if kind == "For":
        yield from prefetches(statement.body, [*loops, statement])
    elif kind == "SeqStmt":
        for each in statement.seq:
            yield from prefetches(each, loops)
    elif kind == "SBlockRealize":
        yield from prefetches(statement.block.body, loops)
    elif kind == "Evaluate" and "prefetch" in str(statement):
        (address,) = [a for a in statement.value.args if type(a).__name__ == "Call"]
        yield address.args[0].indices[-1], loops


def prefetched_elements(module: tvm.IRModule) -> dict[int, set[int]]:
    """By iteration of the outermost loop, the elements that are prefetched."""
    found: dict[int, set[int]] = {}
    for index, loops in prefetches(module["main"].body, []):
        for values in product(*(range(int(loop.extent)) for loop in loops)):
            bound = {loop.loop_var: value for loop, value in zip(loops, values, strict=True)}
            found.setdefault(values[0], set()).add(int(evaluate(index, bound)))
    return found


@only_x86
def test_while_a_panel_is_used_all_lines_of_a_later_one_are_prefetched():
    module = prefetched(laid_out(32), tuned_tiny.target())
    panel = DEPTH * VECTOR
    lines = prefetched_elements(module)
    assert list(lines) == list(range(COLUMNS // VECTOR))
    (ahead,) = {min(elements) - number * panel for number, elements in lines.items()}
    # A panel of 4 kB is used sooner than memory answers: two panels ahead.
    assert ahead == 2 * panel
    for number, elements in lines.items():
        begin = number * panel + ahead
        assert elements == set(range(begin, begin + panel, LINE))


@only_x86
def test_the_assembly_has_prefetches_and_the_result_is_the_same():
    plain, ahead = laid_out(32), prefetched(laid_out(32), tuned_tiny.target())
    assembler = compiled(ahead, target=tuned_tiny.target()).inspect_source("asm")
    assert "prefetcht0" in assembler
    random = np.random.default_rng(0)
    shapes = argument_shapes(plain["main"])
    assert argument_shapes(ahead["main"]) == shapes
    given = [random.random(shape, dtype="float32") for shape in shapes]
    results = []
    for module in (plain, ahead):
        tensors = [tvm.runtime.tensor(value) for value in given]
        build(module, tuned_tiny.target())["main"](*tensors)
        results.append(tensors[-1].numpy())
    assert np.array_equal(*results)
    weights = given[1].transpose(1, 0, 2).reshape(DEPTH, COLUMNS)
    assert np.allclose(results[0], given[0] @ weights, rtol=1e-4)


@pytest.mark.parametrize(
    "module",
    [
        laid_out(4),  # one tile of rows: registers hold all that is reused
        laid_out(128),  # 128 products use each weight: they hardly wait for memory
        tiled(matrix_product(32)),  # weights in the model's layout: no panel is contiguous
        tiled(matrix_product(32, free=False)),  # no weights
    ],
)
def test_kernels_that_would_not_gain_are_left_alone(module):
    assert tvm_ffi.structural_equal(prefetched(module, tuned_tiny.target()), module)


def test_other_processors_are_left_alone():
    arm = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu"})
    assert prefetched(laid_out(32), arm).same_as(laid_out(32))
    gpu = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    assert prefetched(laid_out(32), gpu).same_as(laid_out(32))
    assert shape_of(laid_out(32)["main"].params[1]) == [COLUMNS // VECTOR, DEPTH, VECTOR]
