"""Kernels are built, compared with what they should compute, and kept if they are right."""

import numpy as np
import pytest

from fewtune.runtime.kernel_store import KernelStore
from fewtune.runtime.tvm import tvm
from fewtune.schedule.defaults.default import default_schedule
from fewtune.schedule_check.check import Checker, ScheduleCheck
from fewtune.workers import kernel_build
from fewtune.workers.kernel_build import KernelMaker, as_in_model
from tests.made.kernels import TARGET
from tests.schedule_check.test_check import altered, product


@pytest.fixture
def task():
    return product(8)


@pytest.fixture
def maker(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return KernelMaker(TARGET, Checker(TARGET))


def wanted(task: tvm.IRModule) -> ScheduleCheck:
    return ScheduleCheck("product", tvm.ir.save_json(task))


def test_a_right_kernel_is_kept_and_not_built_again(maker, task, tmp_path, monkeypatch):
    scheduled = default_schedule(task, TARGET).mod
    assert maker.make(scheduled, wanted(task)).fault == ""
    monkeypatch.setattr(kernel_build, "compiled", None)
    path = tmp_path / "kernel.so"
    made = maker.make(scheduled, None, str(path))
    assert (made.library, made.fault) == (str(path), "")
    arguments = [np.ones(shape, "float32") for shape in made.shapes]
    tensors = [tvm.runtime.tensor(each) for each in arguments]
    tvm.runtime.load_module(str(path))["main"](*tensors)
    assert tensors[-1].numpy().tolist() == np.full((12, 16), 8.0).tolist()


def test_a_wrong_kernel_is_named_and_not_kept(maker, task, tmp_path):
    wrong, path = altered(task, extent_less=True), tmp_path / "kernel.so"
    made = maker.make(wrong, wanted(task), str(path))
    assert "elements differ" in made.fault
    assert not path.exists()
    store = KernelStore.of(TARGET)
    assert store is not None
    assert not store.path(as_in_model(wrong, TARGET)["main"]).exists()
