"""Files that appear whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def fsync_directory(directory: Path) -> None:
    """Make a rename in ``directory`` survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` beside ``path``, then rename it into place."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write ``content`` beside ``path``, then rename it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(beside, 0o644)
        os.replace(beside, path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and a final newline: equal values give equal bytes."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """Give a scratch directory that becomes ``path`` only when the block ends well.

    The directory that stood at ``path`` before is replaced; when the block raises, it stays, as it
    does where it cannot be moved away.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield beside
        os.chmod(beside, 0o755)
        _replace(path, beside)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _replace(path: Path, beside: Path) -> None:
    """Put a directory in another one's place: at no time is neither of them whole."""
    if not path.exists():
        os.replace(beside, path)
        fsync_directory(path.parent)
        return
    old = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.old."))
    os.replace(path, old)
    try:
        os.replace(beside, path)
    except BaseException:
        os.replace(old, path)
        raise
    fsync_directory(path.parent)
    shutil.rmtree(old, ignore_errors=True)
