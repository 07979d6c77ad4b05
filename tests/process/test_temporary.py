"""What a process leaves: temporary files go with their command, the collector scans no more."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from fewtune.process.temporary import own_temporary_folder
from tests.made.command import python

# A command that makes a folder, prints its path and waits to be killed.
WAITS = """
import tempfile, time
from fewtune.process.temporary import own_temporary_folder
with own_temporary_folder():
    print(tempfile.mkdtemp(), flush=True)
    time.sleep(600)
"""


@pytest.fixture
def shared(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def age(folder: Path) -> None:
    """Let a folder seem old, unless the killed command's watcher has removed it already."""
    with contextlib.suppress(FileNotFoundError):
        os.utime(folder, (time.time() - 60,) * 2)


def test_all_that_is_made_is_removed(shared):
    with own_temporary_folder():
        code = "import tempfile; print(tempfile.mkdtemp())"
        child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        own = Path(tempfile.mkdtemp())
        assert own.parent == Path(child.stdout.strip()).parent
        with own_temporary_folder():
            assert Path(tempfile.mkdtemp()).parent == own.parent
        assert own.is_dir()
    assert list(shared.iterdir()) == []
    assert os.environ["TMPDIR"] == tempfile.gettempdir() == str(shared)


def test_the_next_command_removes_what_a_killed_one_left(shared):
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True) as it:
        assert it.stdout is not None
        left = Path(it.stdout.readline().strip())
        with own_temporary_folder():
            assert left.is_dir()
        assert left.is_dir()
        it.send_signal(signal.SIGKILL)
    age(left.parent)
    with own_temporary_folder():
        assert not left.exists()
    assert list(shared.iterdir()) == []


def test_a_link_planted_for_onnxruntime_is_not_followed(shared, tmp_path):
    kept = tmp_path / "kept"
    kept.write_text("as it was")
    (shared / ".ses").symlink_to(kept)
    code = "import fewtune; fewtune.check; import onnxruntime"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("ORT_DISABLE_TELEMETRY", None)
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert kept.read_text() == "as it was"


ENDING = """
import atexit, gc
from fewtune.process.contexts import end_without_scans
class Left:
    def __del__(self):
        print("collected")
atexit.register(lambda: print(gc.get_freeze_count() > 1000, len(gc.get_objects()) < 1000))
end_without_scans(); end_without_scans()
left = Left()
left.itself = left
del left
"""


def test_a_process_that_ends_collects_once_and_scans_no_more():
    assert python(ENDING).stdout == "collected\nTrue True\n"
