"""The first interrupt ends measuring with what there is; what follows still runs."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

# Names a file that sessions make when they measure; it has content once they are asked to end.
_END_FILE = "FEWTUNE_END_FILE"
# The files of this process's own blocks: what it started does not ask.
_asking: list[Path] = []


@contextlib.contextmanager
def ending_early(file: Path) -> Iterator[None]:
    """Let an interrupt of this process ask sessions to end while the block runs."""
    os.environ[_END_FILE] = str(file)
    _asking.append(file)
    try:
        yield
    finally:
        _asking.remove(file)
        os.environ.pop(_END_FILE, None)


def listen() -> None:
    """Say that this session measures, and ends when it is asked to."""
    if named := os.environ.get(_END_FILE):
        Path(named).touch()


def ask_to_end() -> bool:
    """Ask sessions to end with what they have; False if none measures, or they were asked."""
    if not _asking or not _asking[-1].exists() or is_asked_to_end():
        return False
    _asking[-1].write_text("end")
    print("fewtune: ending with the best so far; interrupt again to end at once", file=sys.stderr)
    return True


def is_asked_to_end() -> bool:
    """Whether sessions are to end with what they have."""
    file = Path(os.environ.get(_END_FILE) or os.devnull)
    return file.is_file() and file.stat().st_size > 0
