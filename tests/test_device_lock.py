"""The device lock, held by real second processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.common import alone
from fewtune.artifacts import Fingerprint
from fewtune.errors import MachineError
from fewtune.machine import device_lock

DEVICE = "test"
HOLD = """
import sys, time
from fewtune.machine.device_lock import device_lock
with device_lock("test", sys.argv[1], poll_s=0.02):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


@pytest.fixture(autouse=True)
def own_lock_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the tests off the machine's real locks."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


@contextmanager
def another_process(purpose: str, seconds: float) -> Iterator[subprocess.Popen]:
    command = [sys.executable, "-c", HOLD, purpose, str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_until_held(process: subprocess.Popen) -> None:
    assert process.stdout.readline() == "held\n"


def test_a_free_device_is_taken_in_silence() -> None:
    said: list[str] = []
    with device_lock.device_lock(DEVICE, "tune a (full)", said.append):
        note = json.loads(device_lock.lock_path(DEVICE).read_text())
    assert said == []
    assert note["pid"] == os.getpid()
    assert note["purpose"] == "tune a (full)"


def test_a_second_run_waits_and_says_once_for_what() -> None:
    said: list[str] = []
    with another_process("tune tiny (selective)", 1.0) as holder:
        wait_until_held(holder)
        started = time.monotonic()
        with device_lock.device_lock(DEVICE, "benchmark other", said.append, poll_s=0.02):
            waited = time.monotonic() - started
            assert holder.wait(timeout=5) == 0
    assert waited > 0.5
    assert len(said) == 1
    assert said[0].startswith("benchmark other: waiting for test, which is busy: ")
    assert f"tune tiny (selective) (process {holder.pid}, since 20" in said[0]


def test_another_device_is_not_waited_for() -> None:
    said: list[str] = []
    with another_process("tune tiny", 30) as holder:
        wait_until_held(holder)
        with device_lock.device_lock("another", "benchmark", said.append):
            pass
    assert said == []


def test_a_killed_holder_lets_go() -> None:
    with another_process("tune tiny", 30) as holder:
        wait_until_held(holder)
        holder.send_signal(signal.SIGKILL)
        with device_lock.device_lock(DEVICE, "benchmark", poll_s=0.02):
            assert holder.wait(timeout=5) == -signal.SIGKILL


def test_an_error_lets_go() -> None:
    with pytest.raises(ZeroDivisionError), device_lock.device_lock(DEVICE, "tune"):
        raise ZeroDivisionError
    with another_process("benchmark", 0) as second:
        wait_until_held(second)


def test_a_forked_child_does_not_keep_the_lock() -> None:
    with device_lock.device_lock(DEVICE, "tune"):
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,))
        child.start()
    try:
        with another_process("benchmark", 0) as second:
            wait_until_held(second)
        assert child.is_alive()
    finally:
        child.kill()
        child.join()


def test_a_note_half_written_is_no_reason_to_fail() -> None:
    said: list[str] = []
    with another_process("tune tiny", 0.5) as holder:
        wait_until_held(holder)
        device_lock.lock_path(DEVICE).write_text("")
        with device_lock.device_lock(DEVICE, "benchmark", said.append, poll_s=0.02):
            pass
    assert said == [
        "benchmark: waiting for test, which is busy: a process that has only just begun"
    ]


@pytest.mark.parametrize(
    ("target", "expected"), [('{"kind": "llvm"}', "cpu"), ('{"kind": "cuda"}', "cuda-0")]
)
def test_a_device_is_named_by_its_target(target: str, expected: str) -> None:
    fingerprint = Fingerprint(
        device="x", logical_cores=1, memory_gib=1, system="x", target=target, threads=1, versions={}
    )
    assert device_lock.device_name(fingerprint) == expected


def test_a_benchmark_measures_alone_and_tells_bad_input_in_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended, alone("engine"):
        assert "benchmark engine" in device_lock.lock_path("cpu").read_text()
        raise MachineError("no C\n compiler")
    assert ended.value.code == 3
    assert capsys.readouterr().err == "engine: no C compiler\n"
