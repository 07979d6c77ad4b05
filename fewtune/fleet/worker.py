"""What Dask calls on a worker: pass an order on to the station, which has TVM, and Dask has not."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

# Seconds that a step may take: a batch takes seconds, one of a huge kernel a few minutes.
STEP_S = 900.0
RESOURCE = "device"
# What the station says when it has the device.
BEGUN = ("begun",)

_lock = threading.Lock()
_station: _StationProcess | None = None


class _StationProcess:
    """The station of this Dask worker."""

    def __init__(self) -> None:
        here, there = socket.socketpair()
        path = os.pathsep.join(each for each in sys.path if each)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fewtune.fleet.station", str(there.fileno())],
            pass_fds=[there.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
        )
        there.close()
        self._connection = Connection(here.detach())

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, order: dict[str, Any], limit_s: float) -> tuple[Any, ...]:
        """The answer to an order; how it died, or that it was killed for taking too long."""
        try:
            self._connection.send(order)
            # Another run may hold the device: that is waited for as long as it takes.
            if (answer := self._connection.recv()) != BEGUN:
                return answer
            if not self._connection.poll(limit_s):
                self.kill()
                return "hung", f"no answer in {limit_s:g} s"
            return self._connection.recv()
        except (EOFError, ConnectionResetError, BrokenPipeError):
            code = self._process.wait()
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return "died", name

    def kill(self) -> None:
        """End it; its workers end with it."""
        self._connection.close()
        self._process.kill()
        self._process.wait()


def dask_setup(_worker: Any = None) -> None:
    """Start the station with the Dask worker: TVM takes seconds to load. Dask calls this."""
    global _station  # noqa: PLW0603 (as in `carry_out`)
    with _lock:
        if _station is None:
            _station = _StationProcess()


def carry_out(order: dict[str, Any], limit_s: float = STEP_S) -> tuple[Any, ...]:
    """Have the station carry an order out; start one, where there is none."""
    global _station  # noqa: PLW0603 (one a process, which outlives what calls it)
    with _lock:
        if _station is None:
            _station = _StationProcess()
        answer = _station.ask(order, limit_s)
        if answer[0] in ("died", "hung"):
            _station = None
        return answer


def command(address: str, extra: list[str]) -> list[str]:
    """The command that runs a Dask worker with one device, restarted when it dies."""
    return [
        sys.executable,
        "-m",
        "distributed.cli.dask_worker",
        address,
        *("--nthreads", "1", "--nworkers", "1", "--resources", f"{RESOURCE}=1"),
        # Tuning keeps to limits of its own, and none of its data lies with Dask.
        *("--memory-limit", "0", "--no-dashboard", "--preload", __name__),
        *extra,
    ]
