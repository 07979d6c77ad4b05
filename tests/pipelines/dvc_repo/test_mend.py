"""What a killed DVC leaves is mended; what a living one holds stays."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fewtune.pipelines.dvc_repo.mend import kept_lock_file, mend_lock_file, mend_rwlock


@pytest.fixture
def file(tmp_path):
    folder = tmp_path / ".dvc" / "tmp"
    folder.mkdir(parents=True)
    return folder / "rwlock"


@pytest.fixture
def zombie():
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
def test_a_list_that_was_cut_off_is_emptied(file, content):
    file.write_text(content)
    mend_rwlock(file.parents[2])
    assert json.loads(file.read_text()) == {}


@pytest.mark.parametrize("content", [{}, {"read": {}}, users(os.getpid())])
def test_a_whole_one_stays_as_it_is(file, content):
    mend_rwlock(file.parents[2])
    assert not file.exists()
    file.write_text(json.dumps(content))
    before = file.stat()
    mend_rwlock(file.parents[2])
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_zombie_is_waited_for_by_nobody(file, zombie):
    file.write_text(json.dumps(users(zombie)))
    mend_rwlock(file.parents[2])
    assert json.loads(file.read_text()) == {}


def test_a_number_that_another_process_has_now_is_nobody(file):
    file.write_text(json.dumps(users(os.getpid())))
    os.utime(file, (1.0, 1.0))
    mend_rwlock(file.parents[2])
    assert json.loads(file.read_text()) == {}


ONE = "schema: '2.0'\nstages:\n  a:\n    cmd: make a\n"
TWO = f"{ONE}  b:\n    cmd: make b\n"


# A process that ends within the block, without its end.
DIES = """
import os, sys
from pathlib import Path
from fewtune.pipelines.dvc_repo.mend import kept_lock_file
root, left = Path(sys.argv[1]), sys.argv[2]
with kept_lock_file(root):
    (root / "dvc.lock").unlink(missing_ok=True)
    if left != "none":
        (root / "dvc.lock").write_text(left)
    os._exit(9)
"""


def killed(root: Path, before: str | None, left: str | None) -> Path:
    """The file after a command that is killed leaves it so."""
    file = root / "dvc.lock"
    if before is not None:
        file.write_text(before)
    command = [sys.executable, "-c", DIES, str(root), "none" if left is None else left]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run(command, env=environment).returncode == 9
    return file


@pytest.mark.parametrize("left", ["", "stages:\n  a:\n", TWO[:30], "schema: '2.0'\n", None])
def test_what_was_cut_short_is_as_before(tmp_path, left):
    file = killed(tmp_path, ONE, left)
    mend_lock_file(tmp_path)
    assert file.read_text() == ONE


def test_what_was_written_whole_stays(tmp_path):
    file = killed(tmp_path, ONE, TWO)
    mend_lock_file(tmp_path)
    assert file.read_text() == TWO


def test_a_file_damaged_otherwise_is_left_alone(tmp_path):
    with kept_lock_file(tmp_path):
        (tmp_path / "dvc.lock").write_text(ONE)
    conflict = f"<<<<<<< ours\n{ONE}=======\n{TWO}>>>>>>> theirs\n"
    (tmp_path / "dvc.lock").write_text(conflict)
    mend_lock_file(tmp_path)
    assert (tmp_path / "dvc.lock").read_text() == conflict
