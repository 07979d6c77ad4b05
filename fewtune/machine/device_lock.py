"""One measurement at a time on a device: an operating-system lock that all checkouts share.

Two measurements on one device spoil each other's figures. The lock is `flock` on a file in the
machine's temporary folder, so that it holds across checkouts, and the kernel lets go of it when
its holder ends in whatever way, ``kill -9`` included.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from fewtune.artifacts import Fingerprint

POLL_S = 0.5

# Descriptors of locks held here. A forked worker must not keep the lock alive after its parent.
_held: set[int] = set()


def _let_go_in_child() -> None:
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go_in_child)


def device_name(fingerprint: Fingerprint) -> str:
    """The lock's name of the device that a fingerprint's target runs on, such as ``cpu``."""
    kind = json.loads(fingerprint.target)["kind"]
    return "cpu" if kind in ("llvm", "c") else f"{kind}-0"


def lock_path(device: str) -> Path:
    """The file that stands for ``device`` on this machine, for this user."""
    return Path(tempfile.gettempdir()) / f"fewtune-{os.getuid()}-{device}.lock"


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _holder(descriptor: int) -> str:
    """Say who holds the lock, from what the holder wrote into the file."""
    try:
        holder = json.loads(os.pread(descriptor, 4096, 0))
        return f"{holder['purpose']} (process {holder['pid']}, since {holder['since']})"
    except (ValueError, KeyError, TypeError):
        return "a process that has only just begun"


@contextmanager
def device_lock(
    device: str,
    purpose: str,
    say: Callable[[str], None] = _say,
    poll_s: float = POLL_S,
) -> Iterator[None]:
    """Hold ``device`` for measuring while the block runs; wait while another process holds it.

    Parameters
    ----------
    device : str
        The device's name (`device_name`).
    purpose : str
        What is measured, told to whoever waits, such as ``tune squeezenet (selective)``.
    say : callable
        Gets one line, once, if the device is not free.
    poll_s : float
        Seconds between two attempts.
    """
    descriptor = os.open(lock_path(device), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    _held.add(descriptor)
    try:
        waited = False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not waited:
                    say(f"{purpose}: waiting for {device}, which is busy: {_holder(descriptor)}")
                    waited = True
                time.sleep(poll_s)
        since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        note = {"pid": os.getpid(), "purpose": purpose, "since": since}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(note).encode(), 0)
        yield
    finally:
        # A forked child that outlives this block has closed its copy: closing here frees the lock.
        if descriptor in _held:
            _held.discard(descriptor)
            os.close(descriptor)
