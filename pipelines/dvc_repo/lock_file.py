"""Keeps a copy of DVC's `dvc.lock`, in case a process is killed while it writes the file.

DVC empties the file, then writes it. Killed in between, it leaves a file that every later command
refuses, or one without the stages that ran before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from fewtune.util.files import write_bytes
from stages.paths import Places


@contextmanager
def kept_lock_file(root: Path) -> Iterator[None]:
    """Keep a copy of the file while the block runs, for the next command if this one is killed."""
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
