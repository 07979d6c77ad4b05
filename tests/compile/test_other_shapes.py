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


def served(other: str, logged: str, *faults: str) -> Level:
    """The level of a convolution of another shape; only one has a schedule in the log."""
    found, database = tuned_tiny.convolutions(), read_database(tuned_tiny.predicted())
    task, device = found[other], device_of(tuned_tiny.fingerprint())
    schedules = KernelSchedules(tuned_tiny.lowered(), [found[logged]], database, device.target)
    twins = [Task(task.info.model_copy(update={"calls": {"main_1": 1}}), task.mod), found["b"]]
    with mock.patch.object(Checker, "check", side_effect=map(Verdict, faults)) as check:
        serve_other_shapes(schedules, twins[: 1 + (other != "b")], database, device, {}.keys())
    assert check.call_count == len(faults)
    assert [*schedules.failed.values()] == [f"moved to another shape, {f}" for f in faults if f]
    return schedules.levels[task.info.name]


def test_a_kernel_is_checked_once_and_a_wrong_one_gets_its_default_schedule():
    assert served("b", "b", "3 of 9 elements differ") == Level.DEFAULT
    assert served("b", "b", "") == Level.LOG
    # It is kept now, and so it is known to be right.
    assert served("b", "b") == Level.LOG


def test_a_kernel_without_a_schedule_takes_that_of_its_twin():
    assert served("c", "b", "") == Level.LOG
