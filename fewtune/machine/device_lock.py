"""One measurement at a time on a device: an operating-system lock that all checkouts share.

Two measurements on one device disturb each other. The lock is `flock` on one file for the machine,
so that it holds across checkouts, users and temporary folders. The kernel releases it when its
holder ends in any way, ``kill -9`` included.

Any user may write in the folder of that file, so nothing in it is trusted: no link is followed,
only a regular file is locked, and only its owner writes into it. `flock` needs only permission to
read.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from fewtune.errors import MachineError, quoted

POLL_S = 0.5
# Folders in which programs of all users keep locks; the second is used if the first is missing.
_FOLDERS = (Path("/run/lock"), Path("/tmp"))
# For tests and for machines that keep locks elsewhere: all users have to name the same folder.
LOCK_FOLDER = "FEWTUNE_LOCK_FOLDER"

# Descriptors of locks held here. A forked worker must not keep the lock alive after its parent.
_held: set[int] = set()


def _let_go_in_child() -> None:
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go_in_child)


def lock_path(device: str) -> Path:
    """The file that stands for ``device`` on this machine, the same for every user."""
    given = os.environ.get(LOCK_FOLDER)
    folder = Path(given) if given else next(filter(_open_to_all, _FOLDERS), _FOLDERS[-1])
    return folder / f"fewtune-{device}.lock"


def _open_to_all(folder: Path) -> bool:
    try:
        return bool(folder.stat().st_mode & stat.S_IWOTH)
    except OSError:
        return False


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _holder(descriptor: int) -> str:
    """The lock's holder, from its note in the file."""
    try:
        holder = json.loads(os.pread(descriptor, 4096, 0))
        return quoted(f"{holder['purpose']} (process {holder['pid']}, since {holder['since']})")
    except (ValueError, KeyError, TypeError):
        return "a process that has only just begun"


def _opened(path: Path) -> int:
    """Open a lock's file, made if missing; for writing if it is this user's, else for reading."""
    kept = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = -1
    # If other users' files may not be opened for writing, reading is enough.
    for flags in (os.O_RDWR | os.O_CREAT | os.O_EXCL, os.O_RDWR, os.O_RDONLY):
        try:
            descriptor = os.open(path, flags | kept, 0o644)
            break
        except (FileExistsError, PermissionError):
            continue
        except OSError as error:
            raise _unusable(path, error.strerror or str(error)) from None
    if descriptor < 0:
        raise _unusable(path, "it cannot be read")
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(descriptor)
        raise _unusable(path, "it is no plain file of its own")
    if found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) != 0o644:
        # Independent of the umask: other users have to read it.
        os.fchmod(descriptor, 0o644)
    return descriptor


def _unusable(path: Path, why: str) -> MachineError:
    return MachineError(
        f"{path} cannot be used as a lock ({why}): remove it, or have its owner remove it"
    )


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether ``path`` still names the open file: the folder may have been cleaned up."""
    try:
        there = path.lstat()
    except OSError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)


def _note(descriptor: int, purpose: str) -> None:
    """Write who holds the lock, if the file is this user's."""
    if os.fstat(descriptor).st_uid != os.getuid():
        return
    since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    note = {"pid": os.getpid(), "purpose": purpose, "since": since}
    # A full disk must not prevent measuring.
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(note).encode(), 0)


@contextmanager
def device_lock(
    device: str,
    purpose: str,
    say: Callable[[str], None] = _say,
    poll_s: float = POLL_S,
    path: Path | None = None,
) -> Iterator[None]:
    """Hold ``device`` for measuring while the block runs; wait while another process holds it.

    Parameters
    ----------
    device : str
        The device's name (`fewtune.measure.device.Device.lock`).
    purpose : str
        What is measured, for those that wait, such as ``tune squeezenet (selective)``.
    say : callable
        Gets one line, once, if the device is not free.
    poll_s : float
        Seconds between two attempts.
    path : Path, optional
        The lock's file, `lock_path` unless given.

    Raises
    ------
    MachineError
        If the lock's path holds something that is no lock.
    """
    path = path or lock_path(device)
    descriptor = _opened(path)
    _held.add(descriptor)
    waited = False
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not waited:
                    say(f"{purpose}: waiting for {device}, which is busy: {_holder(descriptor)}")
                    waited = True
                time.sleep(poll_s)
                continue
            if _is_at(descriptor, path):
                break
            _let_go(descriptor)
            descriptor = _opened(path)
            _held.add(descriptor)
        _note(descriptor, purpose)
        yield
    finally:
        _let_go(descriptor)


def _let_go(descriptor: int) -> None:
    # A forked child that outlives the block has closed its copy: closing here frees the lock.
    if descriptor in _held:
        _held.discard(descriptor)
        os.close(descriptor)
