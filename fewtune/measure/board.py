"""Boards behind TVM's RPC tracker: candidates are built here, on all cores, and measured there.

A task stays on the board that measured it first, so that its races compare times of one
board. Boards of one key measure in parallel.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fewtune.artifacts import Fingerprint
from fewtune.errors import MachineError
from fewtune.machine.fingerprint import FingerprintOptions
from fewtune.machine.rpc_board import (
    BACK_S,
    BoardAddress,
    BoardModel,
    ask_tracker,
    board_fingerprint,
    linker,
    reserve,
    set_board_threads,
)
from fewtune.measure.device import Capabilities, Device
from fewtune.measure.measurer import Measurer
from fewtune.runtime.tvm import relax, usable_cores
from fewtune.timing.timer import Specs
from fewtune.trial.outcome import Built, RequestFailedError, WorkerLostError
from fewtune.workers.board import BoardBuilder, BoardRunner
from fewtune.workers.handle import WorkerHandle, WorkerOptions
from fewtune.workers.pool import WorkerPool

# Boards are slower than the machine that builds for them, and so may be the network.
_OPTIONS = WorkerOptions(build_timeout_s=20.0, run_timeout_s=60.0)
_MOST_BOARDS = 16


class BoardPool(WorkerPool):
    """Processes that build, and one for each board that measures.

    Parameters
    ----------
    fingerprint : Fingerprint
        Of the boards.
    boards : int
    """

    def __init__(self, fingerprint: Fingerprint, boards: int) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="fewtune-board-")
        self.folder = Path(self._scratch.name)
        target, threads = fingerprint.target, fingerprint.threads
        folder = str(self.folder)
        settings = (target, folder, fingerprint.cross_compiler)
        super().__init__(target, threads, usable_cores(), _OPTIONS, BoardBuilder, settings)
        board = (target, threads, folder, fingerprint.at)
        self.devices = boards
        self.runners = [WorkerHandle(BoardRunner, board, threads) for _ in range(boards)]
        for runner in self.runners:
            runner.start()

    def close(self) -> None:
        """End every process, release the boards, remove all builds."""
        for runner in self.runners:
            with suppress(WorkerLostError, RequestFailedError):
                runner.call(BACK_S, BoardRunner.disconnect)
            runner.kill()
        super().close()
        self._scratch.cleanup()

    def tidy(self) -> None:
        """Drop all builds, here and on the boards."""
        super().tidy()
        for runner in self.runners:
            try:
                runner.call(BACK_S, BoardRunner.forget)
            except (WorkerLostError, RequestFailedError):
                runner.kill()


class BoardMeasurer(Measurer):
    """Builds a batch here and races its candidates on boards, each task on its own.

    Parameters
    ----------
    pool : BoardPool
    at : str
        Where the boards are, for messages.
    """

    pool: BoardPool

    def __init__(self, pool: BoardPool, at: str) -> None:
        super().__init__(pool, overlap=True)
        self._at = at
        self._board_of: dict[str, int] = {}

    def _device(self, specs: Specs) -> int:
        """The board of the tasks with such buffers; a new task gets the board with the fewest."""
        task = repr(specs)
        if task not in self._board_of:
            load = Counter(self._board_of.values())
            self._board_of[task] = min(range(self.pool.devices), key=lambda b: (load[b], b))
        return self._board_of[task]

    def _handle(self, specs: Specs, built: Built) -> WorkerHandle:
        """The process of the task's board, with a session."""
        runner = self.pool.runners[self._device(specs)]
        try:
            runner.call(2 * BACK_S, BoardRunner.connect)
        except (WorkerLostError, RequestFailedError) as fault:
            raise MachineError(
                f"{' '.join(str(fault).split())}; what was measured is kept: run again when the "
                f"board of {self._at} is there"
            ) from None
        return runner


class Board(Device):
    """Boards of one key behind a tracker, all of one class."""

    can = Capabilities(
        cold_caches=False, finals_in_model=False, shared_cores=False, runs_here=False
    )

    @classmethod
    def describe(cls, options: FingerprintOptions) -> Fingerprint:
        """The fingerprint of a board behind a tracker."""
        return board_fingerprint(options)

    @property
    def lock(self) -> str:
        """A name for the tracker's key."""
        return re.sub(r"[^\w.-]+", "-", self.fingerprint.at)

    def __init__(self, fingerprint: Fingerprint) -> None:
        super().__init__(fingerprint)
        self._boards = 1
        self._session: Any = None

    def open(self) -> BoardPool:
        """Reserve every free board of the key.

        Raises
        ------
        MachineError
            If there is no board, or no compiler links for it here.
        """
        address = BoardAddress.of(self.fingerprint.at)
        linker(self.target, self.fingerprint.cross_compiler)
        known = ask_tracker(address, BACK_S)
        self._boards = min(known.free, _MOST_BOARDS)
        crowded = [host for host, servers in Counter(known.hosts).items() if servers > 1]
        if crowded and self._boards > 1:
            print(
                f"{', '.join(crowded)} runs several servers of {address.key}: they measure at "
                "once, and slow each other down unless each has cores of its own",
                file=sys.stderr,
                flush=True,
            )
        return BoardPool(self.fingerprint, self._boards)

    def measurer(self, pool: WorkerPool, *, cold_weights: bool) -> BoardMeasurer:
        """The measurer of batches on the boards; caches stay as calls leave them."""
        assert isinstance(pool, BoardPool)
        return BoardMeasurer(pool, self.fingerprint.at)

    @property
    def link(self) -> Callable[..., None] | None:
        """A cross compiler, if the boards have another architecture."""
        return linker(self.target, self.fingerprint.cross_compiler)

    def load(self, executable: relax.VMExecutable | Path) -> BoardModel:
        """A compiled model on a board, whose session is kept for the next model."""
        if self._session is None:
            session = reserve(BoardAddress.of(self.fingerprint.at))
            set_board_threads(session, self.fingerprint.threads)
            self._session = session
        return BoardModel(self._session, executable, self.target, self.link)

    @property
    def parallel_tasks(self) -> int:
        """The number of boards."""
        return self._boards
