"""A batch is compiled while it is still being put together.

Most of a search runs on one core. The workers compile on all cores, and would wait for it.
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
    """Modules for the workers, of which more may come: one thread adds, another one takes.

    Parameters
    ----------
    modules : iterable of str
        Scheduled modules as TVM JSON that are there already.
    is_open : bool
        Whether more may come, until `close`.

    Attributes
    ----------
    news : Connection or None
        Has something to be read when a module has come, or none will any more (`read_news`); None
        if none will from the beginning.
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
        """Whether there is something to take, or may be later."""
        # In this order: everything is added before it is closed.
        return self._is_open or bool(self._waiting)

    def add(self, module: str) -> None:
        """Give one more module."""
        self._modules.append(module)
        self._waiting.append(len(self._modules) - 1)
        self._sender.send_bytes(b"1")

    def close(self) -> None:
        """Say that no more will come."""
        if self._is_open:
            self._is_open = False
            self._sender.send_bytes(b"0")

    def drop(self) -> None:
        """Close it; what nobody has taken so far is not wanted any more."""
        self._waiting.clear()
        self.close()

    def take(self) -> int | None:
        """The place of the next module, or None where there is none by now."""
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    def put_back(self, place: int) -> None:
        """Have a module taken again, before all others."""
        self._waiting.appendleft(place)

    def read_news(self) -> None:
        """Take one message from `news`."""
        if self.news is not None:
            self.news.recv_bytes()


class Building(Generic[_Result]):
    """A batch that is being put together; see `building`.

    Parameters
    ----------
    feed : Feed
        An open one.
    results : Future
        What comes of the modules, in their order.

    Attributes
    ----------
    payload : list of str
        What it is made of so far: scheduled modules as TVM JSON.
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
        """The batch is complete: wait for the last of it."""
        self._feed.close()
        return self._results.result()


@contextmanager
def building(build: Callable[[Feed], Sequence[_Result]]) -> Iterator[Building[_Result]]:
    """A batch that ``build`` is at, in a thread of its own, as long as the block lasts.

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
            # A block that is left before the batch is complete needs no further builds.
            feed.drop()
