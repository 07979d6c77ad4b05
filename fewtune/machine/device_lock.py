"""One measurement at a time on a device: an operating-system lock that all checkouts share.

Two measurements on one device disturb each other. The lock is `flock` on one file for the machine,
so that it holds across checkouts, users and temporary folders. The kernel releases it when its
holder ends in any way, ``kill -9`` included.

Any user may write in the folder of that file, so nothing in it is trusted: no link is followed,
only a regular file is locked, and only its owner, or root, writes into it. `flock` needs only
permission to read.
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
# For tests and for machines that keep locks elsewhere: all users have to name the same folder.
LOCK_FOLDER = "FEWTUNE_LOCK_FOLDER"
# Where programs of all users keep locks, on most systems.
_FOLDER = Path("/run/lock")


def lock_path(device: str) -> Path:
    """The file that stands for ``device`` on this machine, the same for every user."""
    is_open_to_all = _FOLDER.is_dir() and _FOLDER.stat().st_mode & stat.S_IWOTH
    usual = _FOLDER if is_open_to_all else Path("/tmp")
    return Path(os.environ.get(LOCK_FOLDER) or usual) / f"fewtune-{device}.lock"


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
    why = "it cannot be read"
    # If other users' files may not be opened for writing, reading is enough.
    for flags in (os.O_RDWR | os.O_CREAT | os.O_EXCL, os.O_RDWR, os.O_RDONLY):
        try:
            descriptor = os.open(path, flags | kept, 0o644)
        except (FileExistsError, PermissionError):
            continue
        except OSError as error:
            why = error.strerror or str(error)
            break
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
            if found.st_uid == os.getuid():
                # Independent of the umask: other users have to read it.
                os.fchmod(descriptor, 0o644)
            return descriptor
        os.close(descriptor)
        why = "it is no plain file of its own"
        break
    raise MachineError(
        f"{path} cannot be used as a lock ({why}): remove it, or have its owner remove it"
    )


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
    path, waited = path or lock_path(device), False
    descriptor = _opened(path)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The folder may have been cleaned up meanwhile.
                with suppress(OSError):
                    if os.path.samestat(os.fstat(descriptor), path.lstat()):
                        break
                os.close(descriptor)
                descriptor = _opened(path)
            except BlockingIOError:
                if not waited:
                    say(f"{purpose}: waiting for {device}, which is busy: {_holder(descriptor)}")
                    waited = True
                time.sleep(poll_s)
        since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        note = {"pid": os.getpid(), "purpose": purpose, "since": since}
        # Another user's file cannot be written, and a full disk must not prevent measuring.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(note).encode(), 0)
        yield
    finally:
        # A forked child has the descriptor, too, and may outlive the block.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
