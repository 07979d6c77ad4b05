"""Repairs what a killed DVC process leaves in its own files, on which a later one fails."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import yaml

from fewtune.pipelines.dvc_repo.track import dvc_root
from fewtune.stages.paths import Places
from fewtune.util.files import write_bytes, write_text

_FOLDER = Path(".dvc", "tmp")
_FILE, _GUARD = "rwlock", "rwlock.lock"


def mend_rwlock(root: Path) -> None:
    """Empty DVC's list of outputs in use if it is damaged, or no process of it lives any more.

    DVC empties the file, then writes it: killed in between, or on a full disk, it leaves a file
    that every later `dvc repro` refuses. A killed process stays in the list. DVC drops it if
    no process has its number. DVC waits where a zombie has it, as in a container whose first
    process does not reap, or where a later process has it.

    Parameters
    ----------
    root : Path
        The checkout.
    """
    file = (dvc_root(root) or root) / _FOLDER / _FILE
    if not _is_left(file):
        return
    from dvc.lock import LockError, make_lock

    # If a DVC process holds the lock and writes the file now, the file will be whole.
    with (
        contextlib.suppress(LockError, OSError),
        make_lock(str(file.with_name(_GUARD)), tmp_dir=str(file.parent)),
    ):
        if _is_left(file):
            write_text(file, "{}")


def _is_left(file: Path) -> bool:
    """Whether there is a list that is damaged, or names only processes that are gone."""
    try:
        content, written_s = file.read_bytes(), file.stat().st_mtime
    except OSError:
        return False
    try:
        # An output has one writer or a list of readers.
        outputs = [each for mode in json.loads(content).values() for each in mode.values()]
        users = [user for each in outputs for user in (each if isinstance(each, list) else [each])]
        pids = {int(user["pid"]) for user in users}
    except (ValueError, KeyError, TypeError, AttributeError):
        return True
    return bool(pids) and not any(_lives(pid, written_s) for pid in pids)


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


@contextmanager
def kept_lock_file(root: Path) -> Iterator[None]:
    """Keep a copy of `dvc.lock` while the block runs, for the next command if this one is killed.

    DVC empties the file, then writes it. Killed in between, it leaves a file that every later
    command refuses, or one without the stages that ran before.
    """
    mend_lock_file(root)
    file, copy = Places(root).lock, _copy(root)
    # The copy is empty if there is no file.
    write_bytes(copy, file.read_bytes() if file.is_file() else b"")
    try:
        yield
    finally:
        mend_lock_file(root)


def mend_lock_file(root: Path) -> None:
    """Put the copy back if a process was killed while it wrote the file.

    Parameters
    ----------
    root : Path
        The checkout. A file that is damaged in another way, such as by a merge, is left alone.
    """
    file, copy = Places(root).lock, _copy(root)
    if not copy.is_file():
        return
    before = _stages(copy)
    now = _stages(file) if file.is_file() else {}
    if now is None or not (before or {}).keys() <= now.keys():
        content = copy.read_bytes()
        if content:
            write_bytes(file, content)
        else:
            file.unlink(missing_ok=True)
    copy.unlink()


def _copy(root: Path) -> Path:
    places = Places(root)
    return places.scratch / f"{places.lock.name}.before"


def _stages(file: Path) -> dict[str, Any] | None:
    """The stages of a lock file; None where it is damaged."""
    try:
        content = yaml.load(file.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, ValueError, yaml.YAMLError):
        return None
    if not isinstance(content, dict) or "schema" not in content:
        return None
    stages = content.get("stages") or {}
    if not isinstance(stages, dict):
        return None
    whole = all(isinstance(each, dict) and "cmd" in each for each in stages.values())
    return stages if whole else None
