"""A warm process forks what would start Python, and nothing outlives its owner."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from fewtune.process import warm_python
from fewtune.process.child_python import child_python
from fewtune.process.warm import warm_process
from tests.waiting import until

PROBE = """
import os, sys, time
what = sys.argv[1]
print(os.getcwd(), os.environ["PROBE"], flush=True)
print("to errors", file=sys.stderr, flush=True)
if what == "fail":
    sys.exit(7)
if what == "crash":
    os.kill(os.getpid(), 11)
if what == "sleep":
    open(sys.argv[2], "w").write(str(os.getpid()))
    time.sleep(1000)
"""


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A folder of modules that children find."""
    (tmp_path / "probe.py").write_text(PROBE)
    path = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""), str(tmp_path)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    monkeypatch.setenv("PROBE", "a value")
    return tmp_path


@pytest.fixture
def warm(root):
    with warm_process([], folder=root):
        yield root


@pytest.mark.parametrize(("what", "code"), [("well", 0), ("fail", 7), ("crash", -signal.SIGSEGV)])
def test_it_ends_as_python_would(warm, what, code):
    command = ["-m", "probe", what]
    by_itself = subprocess.run([sys.executable, *command], cwd=warm, capture_output=True)
    forked = subprocess.run([child_python(), *command], cwd=warm, capture_output=True)
    assert child_python() != sys.executable
    assert forked.stdout == by_itself.stdout
    assert forked.stderr == by_itself.stderr
    assert forked.returncode == by_itself.returncode == code


def test_an_interrupt_ends_what_was_forked_as_it_ends_python(warm):
    asked, pid = start(warm)
    os.kill(pid, signal.SIGINT)
    assert asked.wait(120) == -signal.SIGINT
    gone(pid)


def test_an_interrupt_before_the_warm_process_answers_is_silent(tmp_path):
    address = tmp_path / "warm"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as busy:
        busy.bind(str(address))
        busy.listen()
        asking = subprocess.Popen(
            [sys.executable, warm_python.__file__, address, "-m", "probe", "sleep"],
            stderr=subprocess.PIPE,
        )
        connection, _ = busy.accept()
        with connection:
            asking.send_signal(signal.SIGINT)
            code = asking.wait(120)
        # Until the connection is closed, the streams that were sent along it stay open.
        errors = asking.communicate(timeout=120)[1]
    assert (code, errors) == (-signal.SIGINT, b"")


def test_it_outlives_a_process_and_a_caller_that_end_in_one_moment(warm):
    asked, pid = start(warm)
    attends = psutil.Process(pid).parent()
    server = attends.parent()
    attends.suspend()
    os.kill(pid, signal.SIGKILL)
    until(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    asked.kill()
    asked.wait(120)
    attends.resume()
    subprocess.run([child_python(), "-m", "probe", "well"], cwd=warm, check=True)
    assert server.is_running()
    assert child_python() != sys.executable


def test_python_itself_does_what_an_ended_warm_process_no_longer_does(warm):
    asked, pid = start(warm)
    psutil.Process(pid).parent().parent().send_signal(signal.SIGHUP)
    asked.wait(120)
    until(lambda: child_python() == sys.executable)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_was_forked_ends_with_the_process_that_asked(warm, number):
    asked, pid = start(warm)
    asked.send_signal(number)
    asked.wait(120)
    gone(pid)


def test_what_it_has_loaded_is_there_in_what_it_forks(root):
    (root / "loaded.py").write_text("import os\nwhere = os.getpid()\n")
    (root / "asking.py").write_text("import os, loaded\nprint(loaded.where != os.getpid())\n")
    with warm_process([], root):
        command = [child_python(), "-m", "asking"]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr


def start(root: Path) -> tuple[subprocess.Popen[bytes], int]:
    file = root / "pid"
    asked = subprocess.Popen([child_python(), "-m", "probe", "sleep", str(file)], cwd=root)
    return asked, int(until(lambda: file.exists() and file.read_text()))


def gone(pid: int) -> None:
    until(lambda: not psutil.pid_exists(pid))
