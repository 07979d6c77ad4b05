"""Repairs what a killed DVC process leaves in its own files, on which a later one fails."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import psutil

from fewtune.util.files import write_text

_FOLDER = Path(".dvc", "tmp")
_FILE, _GUARD = "rwlock", "rwlock.lock"


def mend_rwlock(root: Path) -> None:
    """Remove from DVC's list of outputs in use what no process uses any more.

    DVC empties the file, then writes it: killed in between, or on a full disk, it leaves a file
    that every later `dvc repro` refuses. A killed process stays in the list. DVC drops it if
    no process has its number. DVC waits where a zombie has it, as in a container whose first
    process does not reap, or where a later process has it.

    Parameters
    ----------
    root : Path
        The checkout.
    """
    file = root / _FOLDER / _FILE
    if _mended(file) is None:
        return
    from dvc.lock import LockError, make_lock

    # If a DVC process holds the lock and writes the file now, the file will be whole.
    with contextlib.suppress(LockError, OSError):
        guard = make_lock(str(file.with_name(_GUARD)), tmp_dir=str(file.parent))
        with guard:
            mended = _mended(file)
            if mended is not None:
                write_text(file, json.dumps(mended))


def _mended(file: Path) -> dict[str, Any] | None:
    """The corrected list; None if it is right, or there is none."""
    try:
        content, written_s = file.read_bytes(), file.stat().st_mtime
    except OSError:
        return None
    try:
        found = json.loads(content)
        kept = {mode: _living(users, written_s) for mode, users in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        # Living processes write their entries again.
        return {}
    return None if kept == found else kept


def _living(users: dict[str, Any], written_s: float) -> dict[str, Any]:
    """Outputs with their living users: a list of readers, or one writer."""
    living: dict[str, Any] = {}
    for path, each in users.items():
        if isinstance(each, list):
            readers = [user for user in each if _lives(int(user["pid"]), written_s)]
            if readers or not each:
                living[path] = readers
        elif _lives(int(each["pid"]), written_s):
            living[path] = each
    return living


def _lives(pid: int, written_s: float) -> bool:
    """Whether a process of that number is running, and was when the list was written."""
    try:
        process = psutil.Process(pid)
        # The file system's clock may be a little behind.
        came_later = process.create_time() > written_s + 1
        return process.status() != psutil.STATUS_ZOMBIE and not came_later
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True
