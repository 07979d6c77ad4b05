"""Context managers: one that a process's threads share, and imports without garbage collection.

And a process that ends without a scan of all that was imported.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager


def give_back_memory() -> None:
    """Give freed memory back to the system, which glibc keeps where small blocks stand between."""
    ctypes.CDLL(None).malloc_trim(0)


class SharedContext:
    """A context of which a process has one: the first block enters it, the last one leaves it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._stack: contextlib.ExitStack[bool | None] = contextlib.ExitStack()

    @contextmanager
    def entered(self, make: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
        """Be inside the context while the block runs.

        Parameters
        ----------
        make : callable
            Makes the context. It is called where no other block is inside.
        """
        with self._lock:
            if self._users == 0:
                self._stack.enter_context(make())
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._stack.close()


@contextmanager
def without_gc(*, for_good: bool = False) -> Iterator[None]:
    """Import in the block: TVM and onnx take 1.1 s of a core for it, else 1.5 s.

    The garbage collector would scan every new object, and free nothing.

    Parameters
    ----------
    for_good : bool
        Never scan what is there by the end of the block: for processes that are not a user's, whose
        garbage would stay.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if for_good:
            gc.freeze()
        if was_enabled:
            gc.enable()


def end_without_scans() -> None:
    """Let this process, which may be a user's, end without scans of what it has loaded.

    Python ends by looking for garbage several times. In a process with TVM, onnx and scipy that
    takes 0.55 s of a core; 0.2 s with one search, as here.
    """
    atexit.unregister(_freeze)
    atexit.register(_freeze)


def _freeze() -> None:
    gc.collect()
    gc.freeze()
