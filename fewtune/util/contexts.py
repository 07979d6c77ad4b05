"""Context managers: one that a process's threads share, and imports without garbage collection."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager


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
