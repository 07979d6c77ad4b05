"""Work in a process of its own: crashes are reported, optional steps that crash left out."""

import shutil
import signal
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import psutil
import pytest

from fewtune.errors import InputError, MachineError, Terminated, VerificationError
from fewtune.process.apart import run_apart, run_each_apart
from fewtune.process.warm import warm_process
from tests.process.dying_work import NAMES, Ends, OnceThere, Steps


def test_the_caller_works_meanwhile(tmp_path):
    # The child ends only once the caller has done its part.
    done = tmp_path / "done"
    assert run_apart(OnceThere(path=done), done.touch) == "seen"


def test_a_step_that_crashes_is_left_out_by_name():
    found = run_apart(Steps(dies="transpose", raises="fold"))
    assert found["made"] == "made"
    assert found["left_out"] == {
        "fold": "no such axis",
        "transpose": "the process was ended by signal 11 (SIGSEGV) while TVM was at transpose",
    }


def test_a_crash_outside_of_steps_leaves_all_of_them_out():
    found = run_apart(Steps(dies="later"))
    assert found["left_out"].keys() == set(NAMES)
    assert "(SIGSEGV) while the kernels were running" in found["left_out"]["schedule"]


@pytest.mark.parametrize(
    ("how", "error", "told"),
    [
        ("SIGSEGV", InputError, r"ended by signal 11 \(SIGSEGV\) while the graph was being read"),
        ("SIGABRT", InputError, r"ended by signal 6 \(SIGABRT\) while the graph was being read"),
        ("SIGKILL", MachineError, r"killed by signal 9 \(SIGKILL\), perhaps for want of memory"),
        ("exit", MachineError, "ended with exit code 1 while the graph was being read"),
        ("error", VerificationError, "outputs differ"),
        ("fault", RuntimeError, "LookupError: no such thing"),
    ],
)
def test_an_end_is_told_by_its_kind(how, error, told):
    with pytest.raises(error, match=told):
        run_apart(Ends(how=how))


@pytest.mark.parametrize(
    ("number", "raised"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)],
    ids=["SIGINT", "SIGTERM"],
)
@pytest.mark.parametrize("kept", [nullcontext, partial(warm_process, [])], ids=["cold", "warm"])
def test_a_child_that_is_interrupted_interrupts_its_parent(kept, number, raised):
    with kept(), pytest.raises(KeyboardInterrupt) as ended:
        run_apart(Ends(how=number.name))
    assert ended.type is raised


def test_a_crash_on_a_full_disk_is_the_machines_fault(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=4096))
    with pytest.raises(MachineError, match="no space left on device; free some space"):
        run_apart(Ends(how="SIGABRT"))


def test_jobs_side_by_side_each_leave_out_what_crashed_in_theirs():
    found = run_each_apart([Steps(dies="transpose"), Steps(), Steps(raises="fold")])
    assert [list(each["left_out"]) for each in found] == [["transpose"], [], ["fold"]]
    assert found[1] == {"made": "made", "left_out": {}}


def test_the_first_failure_ends_the_other_jobs():
    before = {child.pid for child in psutil.Process().children()}
    with pytest.raises(VerificationError, match="outputs differ"):
        run_each_apart([Ends(how="error"), Ends(how="waits")])
    assert {child.pid for child in psutil.Process().children()} <= before
