"""A task that MetaSchedule raises for is set aside, and the others are selected."""

from __future__ import annotations

from types import SimpleNamespace

from fewtune.runtime.tvm import te, tvm
from fewtune.selection.options import SelectOptions
from fewtune.selection.select import select_tasks
from fewtune.similarity.space_signature import design_space
from tests.made.banks import task_info
from tests.made.kernels import TARGET

WIDTH = 16


def product(*, by_a_step: bool) -> tvm.IRModule:
    """A product whose bias is turned, and counted in steps as dynamically quantised ones are."""
    data, weight = te.placeholder((WIDTH, 32)), te.placeholder((32, WIDTH))
    bias, scale = te.placeholder((WIDTH,)), te.placeholder(())
    step = te.compute((), lambda: scale() * 0.5)
    steps = te.compute((WIDTH,), lambda i: te.floor(bias[i] / step()))
    turned = te.compute((1, WIDTH, 1, 1), lambda n, i, j, k: steps[(i + j + k) % WIDTH])
    flat = te.compute((1, 1, 1, WIDTH), lambda n, i, j, k: turned[n, k, i, j])
    depth = te.reduce_axis((0, 32))
    shape = (WIDTH, WIDTH)
    sums = te.compute(shape, lambda i, j: te.sum(data[i, depth] * weight[depth, j], axis=depth))
    result = te.compute(shape, lambda i, j: (sums[i, j] + flat[0, 0, 0, j]) * step())
    if not by_a_step:
        result = te.compute(shape, lambda i, j: sums[i, j] + bias[j])
        return tvm.IRModule({"main": te.create_prim_func([data, weight, bias, result])})
    return tvm.IRModule({"main": te.create_prim_func([data, weight, bias, scale, result])})


def test_a_task_without_a_design_space_is_set_aside_and_named() -> None:
    modules = {"turned": product(by_a_step=True), "plain": product(by_a_step=False)}
    assert design_space(modules["turned"], TARGET).fault
    tasks = [
        SimpleNamespace(info=task_info(name, workload=name, operator="dense", share=0.5), mod=mod)
        for name, mod in modules.items()
    ]

    selection, _ = select_tasks(
        tasks, SelectOptions(), target=TARGET, model="net", strategy="selective"
    )

    assert selection.representatives == ["plain"]
    assert selection.set_aside == ["turned"]
    assert "1 that MetaSchedule makes no design space of (turned: " in selection.set_aside_rule
