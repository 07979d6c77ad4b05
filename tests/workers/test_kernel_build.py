"""Kernels are built, compared with what they should compute, and kept if they are right."""

import numpy as np
import pytest

from fewtune.runtime import kernel_store
from fewtune.runtime.kernel_store import KernelStore
from fewtune.runtime.tvm import tvm
from fewtune.schedule.defaults import default_schedule
from fewtune.schedule_check.check import Checker, ScheduleCheck
from fewtune.workers.worker import KernelMaker, as_in_model
from tests.made.kernels import TARGET
from tests.made.products import matrix_product
from tests.schedule_check.test_check import altered


@pytest.fixture
def task():
    return matrix_product(12, 16, 8)


@pytest.fixture
def maker(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return KernelMaker(TARGET, Checker(TARGET))


def wanted(task: tvm.IRModule) -> ScheduleCheck:
    return ScheduleCheck("product", tvm.ir.save_json(task))


def test_a_right_kernel_is_kept_and_not_built_again(maker, task, monkeypatch):
    scheduled = default_schedule(task, TARGET).mod
    made = maker.make(scheduled, wanted(task))
    assert (made.fault, made.object.is_file()) == ("", True)
    monkeypatch.setattr(kernel_store, "compiled", None)
    assert maker.make(scheduled, None) == made
    tensors = [tvm.runtime.tensor(np.ones(shape, "float32")) for shape in made.shapes]
    kernel_store.loaded({"kernel": made.object})["kernel"](*tensors)
    assert tensors[-1].numpy().tolist() == np.full((12, 16), 8.0).tolist()


def test_a_wrong_kernel_is_named_and_not_kept(maker, task):
    wrong = altered(task, extent_less=True)
    made = maker.make(wrong, wanted(task))
    assert "elements differ" in made.fault
    assert made.object is None
    store = KernelStore.of(TARGET)
    assert store is not None
    assert not store.path(as_in_model(wrong, TARGET)["main"]).exists()
