"""`dvc.lock` after a process that wrote it was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.dvc_repo.lock_file import kept_lock_file, mend_lock_file

ONE = "schema: '2.0'\nstages:\n  a:\n    cmd: make a\n"
TWO = f"{ONE}  b:\n    cmd: make b\n"


# A process that ends within the block, without its end.
DIES = """
import os, sys
from pathlib import Path
from pipelines.dvc_repo.lock_file import kept_lock_file
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
def test_what_was_cut_short_is_as_before(tmp_path: Path, left: str | None) -> None:
    file = killed(tmp_path, ONE, left)
    mend_lock_file(tmp_path)
    assert file.read_text() == ONE


def test_a_first_lock_file_that_was_cut_short_goes(tmp_path: Path) -> None:
    file = killed(tmp_path, None, "sche")
    mend_lock_file(tmp_path)
    assert not file.exists()


def test_what_was_written_whole_stays(tmp_path: Path) -> None:
    file = killed(tmp_path, ONE, TWO)
    mend_lock_file(tmp_path)
    assert file.read_text() == TWO


def test_a_file_damaged_otherwise_is_left_alone(tmp_path: Path) -> None:
    with kept_lock_file(tmp_path):
        (tmp_path / "dvc.lock").write_text(ONE)
    conflict = f"<<<<<<< ours\n{ONE}=======\n{TWO}>>>>>>> theirs\n"
    (tmp_path / "dvc.lock").write_text(conflict)
    mend_lock_file(tmp_path)
    assert (tmp_path / "dvc.lock").read_text() == conflict
