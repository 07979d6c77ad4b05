"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fewtune.errors import MACHINES_FAULT, FewtuneError, MachineError, disk_line

# What `tempfile` makes beside a file or folder named NAME: .NAME.xxxxxxxx, or .NAME.old.xxxxxxxx.
_BESIDE = re.compile(r"\..+\.[a-z0-9_]{8}")
_YOUNG_S = 1.0


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
        fcntl.flock(descriptor, fcntl.LOCK_EX)
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


# A writer that stops on a full disk leaves less free room than it wanted to write.
_ROOM_BYTES = 1 << 20


def full_disk(*folders: Path) -> OSError | None:
    """The error of a full disk; None if every folder has room.

    LLVM ends its process by SIGABRT where it cannot write, and linkers say so in many ways: none of
    them raises the error.
    """
    for folder in folders:
        if shutil.disk_usage(folder).free < _ROOM_BYTES:
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    return None


@contextmanager
def machine_errors(*folders: Path) -> Iterator[None]:
    """Raise what the system refuses in the block, such as room in one of the folders, as such.

    Raises
    ------
    MachineError
        With one sentence.
    """
    try:
        yield
    except FewtuneError:
        raise
    except Exception as fault:
        refused = full_disk(*(folder for folder in folders if folder.is_dir()))
        if isinstance(fault, OSError) and fault.errno in MACHINES_FAULT:
            refused = fault
        if refused is None:
            raise
        raise MachineError(disk_line(refused)) from None


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
    remove_left(path.parent.glob(f".{path.name}.*"))
    with locked_directory(path.parent, f".{path.name}.") as beside:
        yield beside
        os.chmod(beside, 0o755)
        _replace(path, beside)


@contextmanager
def locked_directory(parent: Path, prefix: str) -> Iterator[Path]:
    """Give a new folder that is removed at the end, and by `remove_left` if its maker is killed."""
    made = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
    descriptor = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield made
    finally:
        os.close(descriptor)
        shutil.rmtree(made, ignore_errors=True)


def remove_left(paths: Iterable[Path]) -> None:
    """Remove what killed processes left half-written, of ``paths``: own, and locked by nobody.

    A file or folder under way is locked by its writer, and the kernel unlocks it when that ends.
    """
    for path in paths:
        if not _BESIDE.fullmatch(path.name):
            continue
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = os.fstat(descriptor)
            # One that was made a moment ago may not be locked yet.
            if found.st_uid != os.getuid() or time.time() - found.st_mtime < _YOUNG_S:
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        except OSError:
            continue
        finally:
            os.close(descriptor)


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
