"""Compilation applies the tuning log, schedules the rest by default, and verifies the library."""

import pytest

from fewtune.artifacts import CompileReport
from fewtune.errors import VerificationError
from fewtune.options import CompileOptions
from fewtune.task.extract import kernels
from fewtune.util.files import whole_directory
from tests import tuned_tiny

pytestmark = pytest.mark.slow


def test_every_kernel_has_a_schedule_and_the_counts_add_up():
    directory = tuned_tiny.compiled()
    report, every = CompileReport.read(directory), kernels(tuned_tiny.lowered())
    assert report.scheduled_from_log == 1
    assert report.scheduled_from_log + report.scheduled_by_default == len(every)
    assert report.unscheduled == []
    assert 0 < report.max_relative_error <= 1e-4


def test_a_library_beyond_the_bound_is_not_written(tmp_path):
    with (
        pytest.raises(
            VerificationError,
            match=r"tiny \(selective\): of the tuned .*rounding allows",
        ),
        whole_directory(tmp_path / "out") as directory,
    ):
        tuned_tiny.compiled_into(directory, CompileOptions(allowance=1e-9))
    assert list(tmp_path.iterdir()) == []


def test_what_native_code_crashed_on_is_left_out_and_named(tmp_path):
    crashed = {"prefetched weights": "died", "tuned_schedules": "died", "default_schedules": "died"}
    report = tuned_tiny.compiled_into(tmp_path, CompileOptions(), crashed)
    assert report.scheduled_from_log == report.scheduled_by_default == 0
    assert len(report.unscheduled) == len(kernels(tuned_tiny.lowered()))
    assert {left.what for left in report.left_out} == crashed.keys()
