"""One run at a time in a checkout: DVC's outputs and params.yaml have one writer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fewtune.machine.device_lock import device_lock

_held: set[Path] = set()


@contextmanager
def turn(root: Path, purpose: str, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the checkout at ``root``; wait, and say for what, while another run holds it.

    Taken again inside the same process, it is held already: a command takes it before it changes
    params.yaml, and the flow that it starts once more.

    Parameters
    ----------
    root : Path
    purpose : str
        Told to whoever waits, such as ``run squeezenet``.
    say : callable
        Gets one line if the checkout is not free.
    """
    root = root.resolve()
    if root in _held:
        yield
        return
    digest = hashlib.sha256(str(root).encode()).hexdigest()[:8]
    with device_lock(f"checkout-{digest}", purpose, say):
        _held.add(root)
        try:
            yield
        finally:
            _held.discard(root)
