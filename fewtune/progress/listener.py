"""Progress for a caller's function: children write it to a named pipe, a thread here reads it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from fewtune.progress.progress import PIPE, Snapshot

_LOG = logging.getLogger("fewtune")
_END = "\n"


@contextlib.contextmanager
def heard_by(tell: Callable[[Snapshot], object]) -> Iterator[None]:
    """Give the snapshots of this process's children to a function while the block runs.

    Other lines of progress are logged. What the function raises is raised at the block's end.
    """
    faults: list[Exception] = []
    with tempfile.TemporaryDirectory(prefix="fewtune-") as folder:
        path = Path(folder) / "progress"
        os.mkfifo(path)
        # With a writer of its own, reading does not end with a child.
        stream = os.fdopen(os.open(path, os.O_RDWR), "r+b", buffering=0)
        reader = threading.Thread(target=_read, args=(stream.fileno(), tell, faults), daemon=True)
        reader.start()
        os.environ[PIPE] = str(path)
        try:
            yield
        finally:
            os.environ.pop(PIPE, None)
            stream.write(_END.encode())
            reader.join()
            stream.close()
    if faults:
        raise faults[0]


def _read(descriptor: int, tell: Callable[[Snapshot], object], faults: list[Exception]) -> None:
    with os.fdopen(os.dup(descriptor)) as lines:
        for line in lines:
            if line == _END:
                return
            content = json.loads(line)
            if isinstance(content, str):
                _LOG.info("%s", content)
            elif not faults:
                try:
                    tell(Snapshot(**content))
                except Exception as fault:  # noqa: BLE001 (raised when the work is done)
                    faults.append(fault)
