"""Progress of a child process, heard by a caller's function."""

import logging
import subprocess
import sys

import pytest

from fewtune.progress.progress import Snapshot, heard_by

CHILD = """
from fewtune.progress.progress import Progress, Snapshot
progress = Progress()
progress.say("one is left out")
for trials in (8, 16):
    progress.show(Snapshot("tune", "conv", trials, 64, 5.0, failures={"build_error": 1}))
"""


def test_snapshots_reach_the_function_and_lines_the_log(caplog):
    heard: list[Snapshot] = []
    with caplog.at_level(logging.INFO, "fewtune"), heard_by(heard.append):
        done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, check=True)
    assert [each.trials for each in heard] == [8, 16]
    assert heard[0].failures == {"build_error": 1}
    assert caplog.messages == ["one is left out"]
    assert done.stdout == b""


def test_a_function_that_raises_is_told_when_the_work_is_done():
    with pytest.raises(ZeroDivisionError), heard_by(lambda _: 1 / 0):
        subprocess.run([sys.executable, "-c", CHILD], check=True)
