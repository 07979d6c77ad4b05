"""The checkout that a command works on, and the lock for writing to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fewtune.errors import InputError
from fewtune.stages.paths import Places

_held: set[Path] = set()


def find_root(start: Path | None = None) -> Path:
    """The nearest folder, from ``start`` upwards, that holds the pipeline's definition.

    Raises
    ------
    InputError
        If there is none.
    """
    start = (start or Path.cwd()).resolve()
    for folder in (start, *start.parents):
        if Places(folder).pipeline.is_file():
            return folder
    raise InputError(
        f"{start} is not inside a fewtune project: no folder from here upwards has a "
        f"{Places().pipeline}; change to your checkout first"
    )


@contextmanager
def turn(root: Path, purpose: str, say: Callable[[str], None]) -> Iterator[None]:
    """Lock the checkout at ``root``; wait, and print for what, while another run holds it.

    DVC's outputs and params.yaml have one writer. The lock is reentrant within a process: a command
    takes it before it changes params.yaml, and the flow that it starts takes it again.
    """
    root = root.resolve()
    if root in _held:
        yield
        return
    # Imported here: a command that only shows results needs no lock, and loads little.
    from fewtune.machine.device_lock import file_lock

    scratch = Places(root).scratch
    scratch.mkdir(exist_ok=True)
    with file_lock(scratch / "run.lock", "this checkout", purpose, say):
        _held.add(root)
        try:
            yield
        finally:
            _held.discard(root)
