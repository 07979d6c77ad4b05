"""Workers: real processes that build, measure, fail, die, hang and are replaced."""

import os
import signal
import sys
from dataclasses import replace
from typing import Any

import pytest

from fewtune.errors import MachineError
from fewtune.measure.measurer import Measurer, module_specs
from fewtune.runtime.tvm import tvm
from fewtune.schedule.defaults import default_schedule
from fewtune.timing.timer import Race
from fewtune.trial.outcome import Built, Outcome
from fewtune.workers.pool import WorkerHandle, WorkerOptions, WorkerPool
from fewtune.workers.worker import Worker
from tests import tuned_tiny
from tests.process.dying_work import FullDisk


@pytest.fixture(scope="module")
def scheduled():
    task = tuned_tiny.convolutions()["c"]
    return default_schedule(task.mod, tuned_tiny.target()).mod


@pytest.fixture(scope="module")
def good(scheduled):
    return tvm.ir.save_json(scheduled)


@pytest.fixture(scope="module")
def specs():
    return module_specs(tuned_tiny.convolutions()["c"].mod)


@pytest.fixture(scope="module")
def pool():
    """One worker for all tests; each leaves it, or its successor, able to work."""
    with WorkerPool(tuned_tiny.fingerprint().target, 1, 1, WorkerOptions()) as workers:
        yield workers


def kill(handle: WorkerHandle) -> None:
    """Kill a worker from outside; returns when it is dead, not yet reaped."""
    os.kill(handle.process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, handle.process.pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.slow
def test_a_module_is_built_and_measured(pool, good, specs):
    first, second = pool.build([good, good])
    assert isinstance(first, Built)
    assert isinstance(second, Built)
    assert first.number != second.number
    handle = pool.handles[first.worker]
    measured = handle.call(10, Worker.measure, first.number, specs, Race(None))
    assert len(measured.run_s) == Race(None).full_repeats
    assert measured.most_flops_s is not None
    assert measured.most_flops_s > 0
    # Against a time that nothing can reach, a candidate is run once only.
    measured = handle.call(10, Worker.measure, second.number, specs, Race(1e-12))
    assert len(measured.run_s) == 1


def test_a_full_disk_ends_the_run_and_is_no_candidates_failure():
    full = "no space left on device; free some space"
    with (
        WorkerPool(tuned_tiny.fingerprint().target, 1, 1, kind=FullDisk, settings=()) as workers,
        pytest.raises(MachineError, match=full),
    ):
        workers.build(["{}"])


def test_a_failing_build_costs_its_candidate_only(pool, good):
    pid = pool.handles[0].process.pid
    bad, fine = pool.build(["no module at all", good])
    assert isinstance(bad, Outcome)
    assert bad.cause == "build_error"
    assert bad.message
    assert isinstance(fine, Built)
    assert pool.handles[0].process.pid == pid


def test_an_error_while_running_is_no_crash(pool, scheduled, specs):
    pid = pool.handles[0].process.pid
    measurer = Measurer(pool)
    # No machine has the memory for this argument.
    absurd = [([2**42], "float32"), *specs[1:]]
    wrong, right = measurer.measure([scheduled] * 2, [absurd, specs], [None] * 2)
    assert (wrong.cause, wrong.run_s) == ("runtime_error", None)
    assert right.run_s
    assert right.cause is None
    assert pool.handles[0].process.pid == pid


@pytest.mark.slow
def test_a_candidate_that_asks_for_absurd_memory_costs_itself_only(scheduled, specs):
    from tvm import te

    data = te.placeholder((2**31, 64), name="data")
    twice = te.compute(data.shape, lambda i, j: data[i, j] * 2, name="twice")
    out = te.compute((64,), lambda j: twice[0, j] + twice[2**31 - 1, j])
    greedy = tvm.IRModule({"main": te.create_prim_func([data, out])})
    options = WorkerOptions(memory_limit_bytes=4 * 2**30)
    with WorkerPool(tuned_tiny.fingerprint().target, 1, 1, options) as workers:
        wrong, right = Measurer(workers).measure(
            [greedy, scheduled], [[([2**31, 64], "float32"), ([64], "float32")], specs], [None] * 2
        )
    assert wrong.run_s is None
    assert wrong.cause in ("runtime_error", "runtime_crash")
    assert right.run_s


@pytest.mark.slow
def test_a_worker_killed_while_building_costs_one_candidate(pool, good, monkeypatch):
    (earlier,) = pool.build([good])
    handle = pool.handles[0]
    # Stopped, it cannot finish before it is killed.
    os.kill(handle.process.pid, signal.SIGSTOP)
    killed = []

    def kill_once_then_receive(*arguments):
        if not killed:
            killed.append(handle.process.pid)
            kill(handle)
        return real_receive(*arguments)

    real_receive = handle.receive
    monkeypatch.setattr(handle, "receive", kill_once_then_receive)
    lost, next_one = pool.build([good, good])
    assert isinstance(lost, Outcome)
    assert lost.cause == "worker_crash"
    assert lost.message == "a worker was killed by signal 9 (SIGKILL), perhaps for want of memory"
    assert isinstance(next_one, Built)
    assert handle.lost_since(earlier)
    assert not handle.lost_since(next_one)


@pytest.mark.slow
def test_what_a_dead_worker_had_is_built_anew(pool, good, specs, monkeypatch):
    measurer = Measurer(pool)
    (handle,), numbers = pool.handles, []

    def call(timeout_s: float, method: Any, *arguments: Any) -> Any:
        if method is Worker.measure:
            numbers.append(arguments[0])
            if len(numbers) == 1:
                kill(handle)
        return real_call(timeout_s, method, *arguments)

    real_call = handle.call
    monkeypatch.setattr(handle, "call", call)
    modules = [tvm.ir.load_json(good)] * 2
    lost, found = measurer.measure(modules, [specs] * 2, [None] * 2, ["task"] * 2)
    assert lost.cause == "runtime_crash"
    assert found.run_s
    assert numbers[1] > numbers[0]


@pytest.mark.slow
def test_a_hanging_build_is_killed(pool, good, monkeypatch):
    pool.build([good])
    pid = pool.handles[0].process.pid
    os.kill(pid, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(pool, "options", replace(pool.options, build_timeout_s=0.01))
        (result,) = pool.build([good])
    assert result == Outcome(None, "build_timeout", "no answer in 0.01 s, killed")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.slow
def test_an_old_worker_is_replaced_between_batches(pool, good, monkeypatch):
    (built,) = pool.build([good])
    pid = pool.handles[0].process.pid
    pool.tidy()
    assert pool.handles[0].process.pid == pid
    monkeypatch.setattr(pool, "options", replace(pool.options, recycle_bytes=1))
    pool.tidy()
    assert pool.handles[0].process.pid != pid
    assert pool.handles[0].lost_since(built)


def test_workers_that_cannot_start_end_the_run(cold, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with (
        WorkerPool("{}", 1, 1) as broken,
        pytest.raises(MachineError, match="workers die before they begin .*exit code 1"),
    ):
        broken.build(["anything"])


def test_closing_ends_the_workers(pool):
    # A worker that an earlier test lost starts with its next request.
    assert all(handle.connection for handle in pool.handles)
    pids = [handle.process.pid for handle in pool.handles]
    pool.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
