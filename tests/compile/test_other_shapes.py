"""Kernels of other shapes take the largest's schedules, and are compared with their tasks."""

from unittest import mock

import pytest

from fewtune.compile.other_shapes import serve_other_shapes
from fewtune.compile.schedules import KernelSchedules, Level
from fewtune.measure.device import device_of
from fewtune.schedule_check.check import Checker, Verdict
from fewtune.storage.database import read_database
from fewtune.task.extract import Task
from tests import tuned_tiny

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _empty_store(tmp_path, monkeypatch):
    tuned_tiny.predicted()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def served(faults: list[str], other: str, logged: str) -> tuple[str, KernelSchedules]:
    """A convolution, as one of another shape, and the schedules after it was served.

    Only one convolution has a schedule in the log.
    """
    found, target = tuned_tiny.convolutions(), tuned_tiny.target()
    tasks, database = [found[logged]], read_database(tuned_tiny.predicted())
    schedules = KernelSchedules(tuned_tiny.lowered(), tasks, database, target)
    info = found[other].info.model_copy(update={"calls": {"main_1": 1}})
    tasks = [*(task for task in tasks if other != logged), Task(info, found[other].mod)]
    device = device_of(tuned_tiny.fingerprint())
    with mock.patch.object(Checker, "check", side_effect=map(Verdict, faults)) as check:
        serve_other_shapes(schedules, tasks, database, device, {}.keys())
    assert check.call_count == len(faults)
    return info.name, schedules


def test_a_kernel_is_checked_once_and_a_wrong_one_gets_its_default_schedule():
    name, wrong = served(["3 of 9 elements differ"], "b", "b")
    assert wrong.failed == {name: "moved to another shape, 3 of 9 elements differ"}
    assert wrong.levels[name] == Level.DEFAULT
    assert served([""], "b", "b")[1].levels[name] == Level.LOG
    # It is kept now, and so it is known to be right.
    assert served([], "b", "b")[1].levels[name] == Level.LOG


def test_a_kernel_without_a_schedule_takes_that_of_its_twin():
    name, schedules = served([""], "c", "b")
    assert (schedules.levels[name], schedules.failed) == (Level.LOG, {})
