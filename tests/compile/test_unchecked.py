"""Schedules that were only predicted are checked before a library is made of them."""

import pytest

from fewtune.artifacts import LogInfo
from fewtune.compile.schedules import KernelSchedules, Level
from fewtune.compile.unchecked import leave_out_wrong, needs_check
from fewtune.runtime.tvm import tvm
from fewtune.storage.database import read_database
from tests import tuned_tiny
from tests.schedule_check.test_check import altered

pytestmark = pytest.mark.slow


class _Given(KernelSchedules):
    """Schedules of the tiny model's log; the kernels of ``wrong`` leave a row out."""

    wrong: frozenset[str] = frozenset()

    def from_log(self) -> dict[str, tuple[str, tvm.tirx.PrimFunc]]:
        found = super().from_log()
        tasks = {task.info.workload: task.mod for task in tuned_tiny.tasks()}
        for name in self.wrong & found.keys():
            workload, _ = found[name]
            found[name] = workload, altered(tasks[workload], extent_less=True)["main"]
        return found


@pytest.fixture
def schedules():
    database = read_database(tuned_tiny.tuned())
    return _Given(tuned_tiny.lowered(), tuned_tiny.tasks(), database, tuned_tiny.target())


def left_out(schedules: KernelSchedules) -> dict[str, str]:
    return leave_out_wrong(schedules, tuned_tiny.tasks(), tuned_tiny.target())


def test_a_wrong_one_is_named_and_gets_the_default(schedules):
    (name,) = (name for name, level in schedules.levels.items() if level == Level.LOG)
    schedules.wrong = frozenset({name})
    reasons = left_out(schedules)
    assert list(reasons) == [name]
    assert "wrong output: " in reasons[name]
    assert "elements differ" in reasons[name]
    assert schedules.levels[name] == Level.DEFAULT


def test_only_predicted_logs_of_this_machine_need_it(tmp_path):
    info = LogInfo.read(tuned_tiny.tuned())
    assert not needs_check(tuned_tiny.tuned(), tuned_tiny.target())
    info.model_copy(update={"predicted": True}).write(tmp_path)
    assert needs_check(tmp_path, tuned_tiny.target())
    foreign = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu"})
    assert not needs_check(tmp_path, foreign)
