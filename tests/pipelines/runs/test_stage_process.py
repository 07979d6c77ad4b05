"""A stage's output and end: a full disk, a busy DVC, a traceback, an interrupt."""

import io
from pathlib import Path

import psutil
import pytest

from fewtune.errors import MachineError
from fewtune.pipelines.dvc_repo.dag import DvcBusyError
from fewtune.pipelines.runs import stage_process
from tests import small_pipeline
from tests.waiting import until


@pytest.mark.parametrize(
    "told",
    [
        "unexpected error - [Errno 28] No space left on device",
        "failed to reproduce 'tune': No possible cache link types for 'out/x'",
        "unexpected error - [Errno 30] Read-only file system: 'dvc.lock'",
        "unexpected error - database or disk is full",
        "unexpected error - attempt to write a readonly database",
    ],
)
def test_what_dvc_says_of_a_full_disk(told, tmp_path, monkeypatch):
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\necho "ERROR: {told}" >&2\nexit 255\n')
    script.chmod(0o755)
    monkeypatch.setenv("FEWTUNE_PYTHON", str(script))
    ending = stage_process.run_stage(tmp_path, "tune", tmp_path / "log", lambda line: None)
    assert ending.exit_code == MachineError.exit_code
    assert ending.error.startswith("the disk does not take what was made (ERROR: ")


def test_a_log_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho a line\n")
    script.chmod(0o755)
    monkeypatch.setenv("FEWTUNE_PYTHON", str(script))
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        stage_process.run_stage(tmp_path, "tune", Path("/dev/full"), lambda line: None)


def test_a_busy_dvc_is_told_from_a_fault(tmp_path):
    lines = stage_process.Lines(io.BytesIO(), lambda _: None)
    lines.take(b"ERROR: Unable to acquire lock. Most likely another DVC process")
    with pytest.raises(DvcBusyError):
        lines.ending(255, "tune@a", tmp_path / "log")


def test_a_fault_is_told_by_the_last_line_of_its_traceback(tmp_path):
    lines = stage_process.Lines(io.BytesIO(), lambda _: None)
    lines.take(b"Traceback (most recent call last):")
    lines.take(b"ValueError: not this")
    lines.take(b"ERROR: failed to reproduce 'tune@a': failed to run: x, exited with 1")
    ending = lines.ending(255, "tune@a", tmp_path / "log")
    assert ending.error == f"ValueError: not this (see {tmp_path / 'log'})"
    assert ending.exit_code == 1


@pytest.mark.slow
def test_an_interrupt_ends_the_stage_and_its_workers(tmp_path):
    root = small_pipeline.make(tmp_path)
    (root / "dvc.yaml").write_text(
        "stages:\n  slow:\n    cmd: echo $$ > pid && echo begun && sleep 1000\n    outs: [never]\n"
    )

    def interrupt(line: str) -> None:
        if line == "begun":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stage_process.run_stage(root, "slow", root / "log", interrupt)
    pid = int((root / "pid").read_text())
    until(lambda: ended(pid))


def ended(pid: int) -> bool:
    """Whether a process has ended; it may wait for init to reap it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
