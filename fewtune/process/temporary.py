"""Temporary files of a command and all its processes, in one folder that is removed with them."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fewtune.process.contexts import SharedContext
from fewtune.util.files import locked_directory, remove_left

_PREFIX, _VARIABLE = ".fewtune.", "TMPDIR"

# Removes the folder when standard input ends, which is when this process does, however it ends;
# processes that a killed command leaves may still write there for a moment.
_WATCHER = (
    'trap "" HUP INT TERM; read -r _; for _ in 1 2 3 4 5 6 7 8 9; do '
    'rm -rf -- "$1" 2>/dev/null; [ -e "$1" ] || exit 0; sleep 0.5; done'
)

# The folder for temporary files is one a process.
_OWN = SharedContext()


@contextmanager
def own_temporary_folder() -> Iterator[None]:
    """Let this process, and those that it starts, make temporary files in a folder of their own.

    Files that a killed process left there, such as TVM's and a linker's, are removed with the
    folder: at the end of the block, or by a watcher if this process is killed. Inside the block
    of another process, that process's folder is used. Blocks of several threads share one folder
    until the last of them ends.
    """
    with _OWN.entered(_made):
        yield


@contextmanager
def _made() -> Iterator[None]:
    shared = Path(tempfile.gettempdir())
    if shared.name.startswith(_PREFIX):
        yield
        return
    remove_left(shared.glob(f"{_PREFIX}*"))
    kept, before = tempfile.tempdir, os.environ.get(_VARIABLE)
    with locked_directory(shared, _PREFIX) as folder, _watched(folder):
        os.environ[_VARIABLE] = tempfile.tempdir = str(folder)
        try:
            yield
        finally:
            tempfile.tempdir = kept
            if before is None:
                os.environ.pop(_VARIABLE, None)
            else:
                os.environ[_VARIABLE] = before
            # Processes of a killed command may still have held its folder for a moment.
            remove_left(shared.glob(f"{_PREFIX}*"))


@contextmanager
def _watched(folder: Path) -> Iterator[None]:
    watcher = subprocess.Popen(
        ["/bin/sh", "-c", _WATCHER, "sh", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
    try:
        yield
    finally:
        watcher.kill()
        watcher.communicate()
