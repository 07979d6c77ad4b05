"""How default schedules split convolutions and products among threads."""

import pytest

from fewtune.runtime.tvm import relax, tvm
from fewtune.schedule.blocks import blocks_of
from fewtune.schedule.defaults import default_schedule
from fewtune.task.access import evaluate
from tests.made.kernels import TARGET, kernels, lowered


def nhwc(data: relax.Expr, weight: relax.Expr) -> relax.Expr:
    return relax.op.nn.conv2d(data, weight, data_layout="NHWC", kernel_layout="HWIO")


def first_outputs_of_threads(kernel: tvm.IRModule) -> list[list[int]]:
    """The first output of each of two threads, as indices."""
    schedule = default_schedule(kernel, TARGET)
    assert schedule is not None
    product = next(
        block for block in blocks_of(schedule) if "conv2d" in schedule.get(block).name_hint
    )
    values = tvm.get_global_func("s_tir.schedule.GetSBlockRealize")(schedule, product).iter_values
    loops = [schedule.get(loop) for loop in schedule.get_loops(product)]
    assert int(loops[0].kind) == int(tvm.tirx.ForKind.PARALLEL)
    inner = {loop.loop_var: 0 for loop in loops[1:]}
    return [
        [evaluate(value, {**inner, loops[0].loop_var: at}) for value in values[:4]]
        for at in (0, int(loops[0].extent) // 2)
    ]


def test_threads_split_the_rows_of_a_convolution():
    (kernel,) = kernels(lowered(nhwc, (1, 14, 14, 288), (1, 1, 288, 128)))
    assert first_outputs_of_threads(kernel) == [[0, 0, 0, 0], [0, 7, 0, 0]]


@pytest.mark.parametrize(
    ("data", "weight"),
    [
        # Rows that do not split evenly; few pixels, for which each thread would read all weights.
        ((1, 13, 13, 64), (1, 1, 64, 128)),
        ((1, 4, 4, 512), (1, 1, 512, 256)),
    ],
)
def test_threads_split_the_filters_where_rows_are_odd_or_few(data, weight):
    (kernel,) = kernels(lowered(nhwc, data, weight))
    (_, second) = first_outputs_of_threads(kernel)
    assert second[1] == 0
    assert second[3] == weight[-1] // 2
