"""One run at a time in a checkout: DVC's outputs and params.yaml have one writer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fewtune.errors import MachineError
from fewtune.machine.device_lock import file_lock
from stages.paths import Places

_held: set[Path] = set()


@contextmanager
def turn(root: Path, purpose: str, say: Callable[[str], None]) -> Iterator[None]:
    """Lock the checkout at ``root``; wait, and print for what, while another run holds it.

    The lock is reentrant within a process: a command takes it before it changes params.yaml, and
    the flow that it starts takes it again.

    Parameters
    ----------
    root : Path
    purpose : str
        What is done, for those that wait, such as ``run squeezenet``.
    say : callable
        Gets one line if the checkout is not free.

    Raises
    ------
    MachineError
        If the lock cannot be made.
    """
    root = root.resolve()
    if root in _held:
        yield
        return
    scratch = Places(root).scratch
    try:
        scratch.mkdir(exist_ok=True)
    except OSError as error:
        raise MachineError(
            f"{scratch} cannot be made ({error.strerror}): a run keeps its lock and journals there"
        ) from None
    with file_lock(scratch / "run.lock", "this checkout", purpose, say):
        _held.add(root)
        try:
            yield
        finally:
            _held.discard(root)
