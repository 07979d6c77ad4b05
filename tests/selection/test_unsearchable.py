"""A task that MetaSchedule raises for is set aside, and the others are selected."""

from types import SimpleNamespace
from typing import Any

from fewtune.options import SelectOptions
from fewtune.runtime.tvm import tvm
from fewtune.selection.select import select_tasks
from fewtune.similarity import similarity
from tests.made.banks import task_info
from tests.made.kernels import TARGET
from tests.made.products import matrix_product, product_with_permuted_bias


def test_a_task_without_a_design_space_is_set_aside_and_named(monkeypatch):
    modules = {"odd": matrix_product(16, 16, 32), "plain": matrix_product(32, 32, 32)}
    generated = similarity.generated

    def raising(module: tvm.IRModule, *given: Any) -> Any:
        # TVM raises for no module that the tests have.
        if module.same_as(modules["odd"]):
            raise RuntimeError("a stack of TVM's\nthere is no such loop")
        return generated(module, *given)

    monkeypatch.setattr(similarity, "generated", raising)
    tasks = [
        SimpleNamespace(info=task_info(name, workload=name, operator="dense", share=0.5), mod=mod)
        for name, mod in modules.items()
    ]

    selection, _ = select_tasks(
        tasks, SelectOptions(), target=TARGET, model="net", strategy="selective"
    )

    assert selection.representatives == ["plain"]
    assert selection.set_aside == ["odd"]


def test_a_product_with_a_permuted_bias_has_a_design_space():
    found = similarity.design_space(product_with_permuted_bias(), TARGET)
    assert found.fault == ""
    assert found.traces
