"""What a killed DVC leaves is mended; what a living one holds stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.dvc_repo.dvc_leftovers import mend_rwlock


@pytest.fixture
def file(tmp_path: Path) -> Path:
    folder = tmp_path / ".dvc" / "tmp"
    folder.mkdir(parents=True)
    return folder / "rwlock"


@pytest.fixture
def zombie() -> Iterator[int]:
    """A process that has ended and that nobody has waited for."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    yield process.pid
    process.wait()


def users(*pids: int) -> dict:
    """DVC's list: the first one writes, all of them read."""
    each = [{"pid": pid, "cmd": "dvc repro"} for pid in pids]
    return {"write": {"out/a": each[0]}, "read": {"params.yaml": each}}


@pytest.mark.parametrize("content", ["", '{"read": {', "null", '{"read": {"a": 1}}'])
def test_a_list_that_was_cut_off_is_emptied(file: Path, content: str) -> None:
    file.write_text(content)
    mend_rwlock(file.parents[2])
    assert json.loads(file.read_text()) == {}


@pytest.mark.parametrize("content", [{}, {"read": {}}, users(os.getpid())])
def test_a_whole_one_stays_as_it_is(file: Path, content: dict) -> None:
    mend_rwlock(file.parents[2])
    assert not file.exists()
    file.write_text(json.dumps(content))
    before = file.stat()
    mend_rwlock(file.parents[2])
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_zombie_is_waited_for_by_nobody(file: Path, zombie: int) -> None:
    file.write_text(json.dumps(users(zombie, os.getpid())))
    mend_rwlock(file.parents[2])
    assert json.loads(file.read_text()) == {
        "write": {},
        "read": {"params.yaml": [{"pid": os.getpid(), "cmd": "dvc repro"}]},
    }


def test_a_number_that_another_process_has_now_is_nobody(file: Path) -> None:
    file.write_text(json.dumps(users(os.getpid())))
    os.utime(file, (1.0, 1.0))
    mend_rwlock(file.parents[2])
    assert json.loads(file.read_text()) == {"write": {}, "read": {}}
