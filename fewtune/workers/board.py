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
from fewtune.schedule_check.check import Checker, ScheduleCheck, Verdict
from fewtune.task.layout_maps import PREPROC
from fewtune.task.weight_layout import free_places
from fewtune.timing.buffers import Specs
from fewtune.timing.timer import BuiltKernel, Measured, Race, Timer
from fewtune.workers.kernel_build import argument_shapes, as_in_model
from fewtune.workers.worker import resident_bytes


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

    def forget(self) -> None:
        """Remove its libraries."""
        for number in self._made:
            path = library_path(self._folder, number)
            path.with_suffix(".json").unlink(missing_ok=True)
            path.unlink(missing_ok=True)
        self._made.clear()

    def resident_bytes(self) -> int:
        """Memory this process holds."""
        return resident_bytes()


class BoardRunner:
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
        self._target = target_from_json(target_json)
        self._threads = threads
        self._folder = Path(folder)
        self._address = BoardAddress.of(at)
        self._session: Any = None
        self._timer: Timer | None = None
        self._loaded: dict[int, BuiltKernel] = {}
        self._checker: Checker | None = None

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
            self._timer = Timer(self._target, self._threads, device, fill)
            self._checker = Checker(self._target, device)
            self._session = session

    def disconnect(self) -> None:
        """End the session properly: TVM's server ends if a client vanishes during a call."""
        self._session, self._timer, self._checker, self._loaded = None, None, None, {}
        gc.collect()

    def measure(self, number: int, specs: Specs, race: Race) -> Measured:
        """Race candidate ``number``; see `Timer.race`."""
        return self._on_board(lambda timer: timer.race(self._kernel(number), specs, race))

    def check(self, number: int, wanted: ScheduleCheck) -> Verdict:
        """Compare what candidate ``number`` computes there with its task; see `Checker.check`."""

        def checked(_: Timer) -> Verdict:
            built = self._kernel(number)
            path = library_path(self._folder, number).with_suffix(".json")
            _, _, scheduled = json.loads(path.read_text())
            assert self._checker is not None
            return self._checker.check(built.code, built.shapes, scheduled, wanted)

        return self._on_board(checked)

    def forget(self) -> None:
        """Drop all loaded libraries; forget the task."""
        for number in self._loaded:
            if self._session is not None:
                with contextlib.suppress(Exception):
                    self._session.remove(library_path(self._folder, number).name)
        self._loaded.clear()
        if self._timer is not None:
            self._timer.buffers.forget()

    def resident_bytes(self) -> int:
        """Memory this process holds."""
        return resident_bytes()

    def _on_board(self, measure: Any) -> Any:
        self.connect()
        try:
            return measure(self._timer)
        except Exception:
            # A candidate's crash ends the session: the next candidate gets a new one.
            self.disconnect()
            raise

    def _kernel(self, number: int) -> BuiltKernel:
        if number not in self._loaded:
            path = library_path(self._folder, number)
            shapes, weights, _ = json.loads(path.with_suffix(".json").read_text())
            self._session.upload(str(path))
            code = self._session.load_module(path.name)
            self._loaded[number] = BuiltKernel(code, [tuple(s) for s in shapes], weights, 0)
        return self._loaded[number]
