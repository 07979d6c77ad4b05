"""What a machine answers to an order that it could not carry out."""

from __future__ import annotations

from fewtune.errors import MachineError
from fewtune.fleet.orders import failed

BEGUN = [{"kind": "start", "task": "conv"}, {"kind": "start", "task": "matmul"}]


def test_an_exception_within_a_task_is_its_crash_and_ends_the_run_outside() -> None:
    within = failed("one", "fault", "ScheduleError: no such loop", BEGUN)
    assert (within.died, within.begun_last) == ("ScheduleError: no such loop", "matmul")
    assert within.fault is None
    outside = failed("one", "fault", "KeyError: 'device'", [])
    assert outside.died == ""
    assert isinstance(outside.fault, RuntimeError)
    assert str(outside.fault) == "one: KeyError: 'device'"


def test_an_error_ends_the_run_and_a_dead_process_does_not() -> None:
    error = failed("one", "error", ["MachineError", "no room"], BEGUN)
    assert isinstance(error.fault, MachineError)
    assert str(error.fault) == "one: no room"
    assert failed("one", "died", "SIGSEGV", BEGUN).died == "SIGSEGV"
    assert failed("one", "hung", "no answer", BEGUN).died == "hung: no answer"
