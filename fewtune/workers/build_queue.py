"""A batch is compiled while the search still adds candidates to it.

Most of a search runs on one core. Without this, the workers, which compile on all cores, would wait
for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Generic, TypeVar

from fewtune.runtime.tvm import tvm

_Result = TypeVar("_Result")


class Feed:
    """A queue of modules for the workers: one thread adds modules, another one takes them.

    Parameters
    ----------
    modules : iterable of str
        The first scheduled modules, as TVM JSON.
    is_open : bool
        Whether more modules may be added, until `close`.

    Attributes
    ----------
    news : Connection or None
        Becomes readable when a module was added or the queue was closed (`read_news`). None if the
        queue was closed from the beginning.
    """

    def __init__(self, modules: Iterable[str] = (), *, is_open: bool = False) -> None:
        self._modules = list(modules)
        self._waiting = deque(range(len(self._modules)))
        self._is_open = is_open
        self.news: Connection | None = None
        if is_open:
            self.news, self._sender = Pipe(duplex=False)

    def __len__(self) -> int:
        return len(self._modules)

    def __getitem__(self, place: int) -> str:
        return self._modules[place]

    @property
    def goes_on(self) -> bool:
        """Whether there is a module to take, now or possibly later."""
        # The order matters: all modules are added before the queue is closed.
        return self._is_open or bool(self._waiting)

    def add(self, module: str) -> None:
        """Give one more module."""
        self._modules.append(module)
        self._waiting.append(len(self._modules) - 1)
        self._sender.send_bytes(b"1")

    def close(self) -> None:
        """Add no more modules."""
        if self._is_open:
            self._is_open = False
            self._sender.send_bytes(b"0")

    def drop(self) -> None:
        """Close the queue, and drop the modules that were not taken."""
        self._waiting.clear()
        self.close()

    def take(self) -> int | None:
        """The place of the next module; None if there is none now."""
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    def put_back(self, place: int) -> None:
        """Return a module to the queue, before all others."""
        self._waiting.appendleft(place)

    def read_news(self) -> None:
        """Take one message from `news`."""
        if self.news is not None:
            self.news.recv_bytes()


class Building(Generic[_Result]):
    """A batch to which modules are added; see `building`.

    Parameters
    ----------
    feed : Feed
        An open one.
    results : Future
        The modules' results, in their order.

    Attributes
    ----------
    payload : list of str
        The scheduled modules so far, as TVM JSON.
    """

    def __init__(self, feed: Feed, results: Future[Sequence[_Result]]) -> None:
        self._feed = feed
        self._results = results
        self.payload: list[str] = []

    def __len__(self) -> int:
        return len(self.payload)

    def add(self, modules: Iterable[tvm.IRModule]) -> None:
        """Add scheduled modules to the batch."""
        for module in modules:
            self.payload.append(tvm.ir.save_json(module))
            self._feed.add(self.payload[-1])

    def finished(self) -> Sequence[_Result]:
        """Close the batch and wait for all results."""
        self._feed.close()
        return self._results.result()


@contextmanager
def building(build: Callable[[Feed], Sequence[_Result]]) -> Iterator[Building[_Result]]:
    """A batch that ``build`` works on, in a thread of its own, while the block runs.

    Parameters
    ----------
    build : callable
        Takes a feed, and returns when it has been closed and everything in it is done.
    """
    feed = Feed(is_open=True)
    with ThreadPoolExecutor(1) as executor:
        try:
            yield Building(feed, executor.submit(build, feed))
        finally:
            # If the block is left before the batch is complete, no further builds are needed.
            feed.drop()
