"""The device lock, held by real second processes."""

import fcntl
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fewtune.errors import MachineError
from fewtune.machine import device_lock

DEVICE = "test"
HOLD = """
import sys
from fewtune.machine.device_lock import device_lock
with device_lock("test", sys.argv[1], poll_s=0.02):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_lock_folder(tmp_path, monkeypatch):
    """Keep the tests off the machine's real locks."""
    monkeypatch.setenv("FEWTUNE_LOCK_FOLDER", str(tmp_path))


@contextmanager
def another_process(purpose: str) -> Iterator[subprocess.Popen]:
    """One that takes the device, and lets it go when its standard input ends."""
    command, pipe = [sys.executable, "-c", HOLD, purpose], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until_held(process: subprocess.Popen) -> None:
    assert process.stdout.readline() == "held\n"


def test_a_free_device_is_taken_in_silence():
    said: list[str] = []
    with device_lock.device_lock(DEVICE, "tune a (full)", said.append):
        note = json.loads(device_lock.lock_path(DEVICE).read_text())
    assert said == []
    assert note["pid"] == os.getpid()
    assert note["purpose"] == "tune a (full)"


def test_a_second_run_waits_and_says_once_for_what():
    said: list[str] = []
    with another_process("tune tiny (selective)") as holder:
        wait_until_held(holder)

        def let_go(line: str) -> None:
            said.append(line)
            holder.stdin.close()

        with device_lock.device_lock(DEVICE, "benchmark other", let_go, poll_s=0.02):
            assert holder.wait(timeout=120) == 0
    assert len(said) == 1
    assert said[0].startswith("benchmark other: waiting for test, which is busy: ")
    assert f"tune tiny (selective) (process {holder.pid}, since 20" in said[0]


def test_a_killed_holder_lets_go():
    with another_process("tune tiny") as holder:
        wait_until_held(holder)
        holder.send_signal(signal.SIGKILL)
        with device_lock.device_lock(DEVICE, "benchmark", poll_s=0.02):
            assert holder.wait(timeout=120) == -signal.SIGKILL


def test_a_forked_child_does_not_keep_the_lock():
    with device_lock.device_lock(DEVICE, "tune"):
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,))
        child.start()
    try:
        with another_process("benchmark") as second:
            wait_until_held(second)
        assert child.is_alive()
    finally:
        child.kill()
        child.join()


@pytest.mark.parametrize("make", [Path.symlink_to, Path.hardlink_to])
def test_another_name_of_a_file_is_not_written(tmp_path, make):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    make(device_lock.lock_path(DEVICE), victim)
    refused = pytest.raises(MachineError, match="cannot be used as a lock")
    with refused, device_lock.device_lock(DEVICE, "tune"):
        pass
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_refused_in_a_line(make):
    make(device_lock.lock_path(DEVICE))
    refused = pytest.raises(MachineError, match="cannot be used as a lock")
    with refused, device_lock.device_lock(DEVICE, "tune"):
        pass


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_users_exclude_each_other(monkeypatch):
    # pytest's own folders are closed to others.
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o1777)
    monkeypatch.setenv("FEWTUNE_LOCK_FOLDER", str(folder))
    with another_process("tune of root") as holder:
        wait_until_held(holder)
        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()

        def as_nobody() -> None:
            os.setuid(65534)
            descriptor = os.open(device_lock.lock_path(DEVICE), os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                answers.put("free")
            except BlockingIOError:
                answers.put("held")
            os.close(descriptor)
            with device_lock.device_lock(DEVICE, "tune of nobody", answers.put, poll_s=0.02):
                pass

        other = context.Process(target=as_nobody)
        other.start()
        assert answers.get() == "held"
        assert "tune of root" in answers.get()
        holder.kill()
        other.join()
    shutil.rmtree(folder)
