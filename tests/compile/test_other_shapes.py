"""Kernels of other shapes take the largest's schedules."""

import pytest

from fewtune.compile.other_shapes import serve_other_shapes
from fewtune.compile.schedules import KernelSchedules, Level
from fewtune.storage.database import read_database
from fewtune.task.extract import Task
from tests import tuned_tiny

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("other", ["b", "c"])
def test_a_kernel_takes_the_schedule_of_its_twin(other):
    found, database = tuned_tiny.convolutions(), read_database(tuned_tiny.predicted())
    task = found[other]
    schedules = KernelSchedules(tuned_tiny.lowered(), [found["b"]], database, tuned_tiny.target())
    twins = [Task(task.info.model_copy(update={"calls": {"main_1": 1}}), task.mod), found["b"]]
    given = twins[: 1 + (other != "b")], database, tuned_tiny.target()
    serve_other_shapes(schedules, *given, {}.keys())
    assert schedules.levels[task.info.name] == Level.LOG
