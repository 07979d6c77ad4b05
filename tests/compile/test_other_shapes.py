"""Kernels of other shapes are compared with their tasks where they are built first."""

from unittest import mock

import pytest

from fewtune.compile.other_shapes import check_moved
from fewtune.compile.schedules import KernelSchedules, Level
from fewtune.schedule_check.check import Checker, Verdict
from fewtune.storage.database import read_database
from fewtune.task.extract import Task
from tests import tuned_tiny


@pytest.mark.slow
def test_a_kernel_is_checked_once_and_a_wrong_one_gets_its_default_schedule(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    task, database = tuned_tiny.convolutions()["b"], read_database(tuned_tiny.tuned())
    other = Task(task.info.model_copy(update={"calls": {"main_1": 1}}), task.mod)
    target = tuned_tiny.target()

    def checked(*faults: str) -> KernelSchedules:
        schedules = KernelSchedules(tuned_tiny.lowered(), tuned_tiny.tasks(), database, target)
        with mock.patch.object(Checker, "check", side_effect=map(Verdict, faults)) as check:
            check_moved(schedules, [other], {}.keys(), target)
        assert check.call_count == len(faults)
        return schedules

    wrong = checked("3 of 9 elements differ")
    assert list(wrong.failed.values()) == ["moved to another shape, 3 of 9 elements differ"]
    assert Level.LOG not in wrong.levels.values()
    assert Level.LOG in checked("").levels.values()
    # It is kept now, and so it is known to be right.
    assert Level.LOG in checked().levels.values()
