"""Work for boards: candidates are cross-compiled here, uploaded and timed there.

One kind of worker compiles candidates into libraries in a folder, so that these outlive the worker.
Another kind holds the session of one board, and times them there. A board or its server may hang or
die like a candidate: the parent kills the worker that waits for it, and starts another.
"""

from __future__ import annotations

import contextlib
import gc
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fewtune.machine.rpc_board import (
    BoardAddress,
    linker,
    remote_device,
    reserve,
    set_board_threads,
)
from fewtune.runtime.linking import export_library
from fewtune.runtime.target import target_from_json
from fewtune.runtime.tvm import compiled, module_of, without_checks
from fewtune.schedule_check.check import Checker
from fewtune.task.weight_layout import PREPROC, free_places
from fewtune.timing.timer import BuiltKernel, Timer
from fewtune.workers.kernel_build import argument_shapes, as_in_model
from fewtune.workers.worker import Worker, resident_bytes


def library_path(folder: Path, number: int) -> Path:
    """The path of candidate ``number``."""
    return folder / f"{number}.so"


class BoardBuilder:
    """Compiles candidates for a board into a folder.

    Parameters
    ----------
    target_json : str
    folder : str
    compiler : str
        Links libraries; found by the target unless given.
    """

    def __init__(self, target_json: str, folder: str, compiler: str) -> None:
        self._target = target_from_json(target_json)
        self._folder = Path(folder)
        self._link = linker(self._target, compiler)
        self._made: set[int] = set()

    def get_ready(self) -> None:
        """Do nothing: nothing has to be made before the first candidate."""

    def build(self, number: int, module_json: str) -> float:
        """Compile candidate ``number``; return the seconds it took."""
        started = time.perf_counter()
        module = as_in_model(module_of(module_json), self._target)
        with without_checks():
            built = compiled(module, self._target)
        path = library_path(self._folder, number)
        export_library(built, path, self._link)
        scheduled = module_json if PREPROC in module_json else ""
        layout = [argument_shapes(module["main"]), free_places(module["main"]), scheduled]
        path.with_suffix(".json").write_text(json.dumps(layout))
        self._made.add(number)
        return time.perf_counter() - started

    def forget(self) -> int:
        """Remove its libraries; return the memory that this process holds."""
        for number in self._made:
            path = library_path(self._folder, number)
            path.with_suffix(".json").unlink(missing_ok=True)
            path.unlink(missing_ok=True)
        self._made.clear()
        return resident_bytes()


class BoardRunner(Worker):
    """Times candidates on one board; keeps its session.

    Parameters
    ----------
    target_json : str
    threads : int
        Threads of a kernel on the board.
    folder : str
        Where builders put candidates.
    at : str
        ``rpc://HOST:PORT/KEY``.
    """

    def __init__(self, target_json: str, threads: int, folder: str, at: str) -> None:
        super().__init__(target_json, threads, 0)
        self._folder = Path(folder)
        self._address = BoardAddress.of(at)
        self._session: Any = None

    def get_ready(self) -> None:
        """Reserve a board now, so that a missing board is noticed early."""
        with contextlib.suppress(Exception):
            self.connect()

    def connect(self) -> None:
        """Connect to a board, unless a session is alive."""
        if self._session is None:
            session = reserve(self._address)
            set_board_threads(session, self._threads)
            fill = session.get_function("tvm.contrib.random.random_fill_for_measure")
            device = remote_device(session, self._target)
            self.timer = Timer(self._target, self._threads, device, fill)
            self._checker = Checker(self._target, device)
            self._session = session

    def disconnect(self) -> None:
        """End the session properly: TVM's server ends if a client vanishes during a call."""
        self._built.clear()
        self._session = self._checker = None
        self.timer = Timer(self._target, self._threads)
        gc.collect()

    def forget(self) -> int:
        """Drop all loaded libraries; forget the task."""
        for number in self._built:
            if self._session is not None:
                with contextlib.suppress(Exception):
                    self._session.remove(library_path(self._folder, number).name)
        return super().forget()

    @contextlib.contextmanager
    def _alive(self) -> Iterator[None]:
        """End the session if a candidate fails: the next one gets a new session."""
        self.connect()
        try:
            yield
        except Exception:
            self.disconnect()
            raise

    def _kernel(self, number: int) -> BuiltKernel:
        if number not in self._built:
            path = library_path(self._folder, number)
            shapes, weights, scheduled = json.loads(path.with_suffix(".json").read_text())
            self._session.upload(str(path))
            code = self._session.load_module(path.name)
            self._built[number] = BuiltKernel(code, [tuple(s) for s in shapes], weights, 0)
            self._scheduled[number] = scheduled
        return self._built[number]
