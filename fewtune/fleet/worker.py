"""The function that Dask calls on a worker: it passes orders on to the station, which loads TVM."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

# Seconds that a step may take: a batch takes seconds, or a few minutes for a huge kernel.
STEP_S = 900.0
RESOURCE = "device"
# The station's messages: that it has the device, and each event with its content.
BEGUN = ("begun",)
EVENT = "event"
# The request of an order that only collects results which no client has fetched.
FETCH = "fetch"

_lock = threading.Lock()
# One a process: it outlives the functions that Dask calls.
station: StationProcess | None = None


class StationProcess:
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

    def ask(self, order: dict[str, Any], limit_s: float) -> tuple[str, Any, list[dict[str, Any]]]:
        """The answer to an order, as of `carry_out`; ``limit_s`` is the longest silence."""
        events: list[dict[str, Any]] = []
        try:
            self._connection.send(order)
            # Another run may hold the device: wait for it without a limit.
            kind, *content = self._connection.recv()
            while kind in (*BEGUN, EVENT):
                # `BEGUN` has no content, an event is the content of its message.
                events += content
                if not self._connection.poll(limit_s):
                    self.kill()
                    return "hung", f"no answer in {limit_s:g} s", events
                kind, *content = self._connection.recv()
            return kind, content[0], events
        except (EOFError, ConnectionResetError, BrokenPipeError):
            code = self._process.wait()
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return "died", name, events

    def kill(self) -> None:
        """End it; its workers end with it."""
        self._connection.close()
        self._process.kill()
        self._process.wait()


def dask_setup(_worker: Any = None) -> None:
    """Start the station with the Dask worker: TVM takes seconds to load. Dask calls this."""
    global station
    with _lock:
        if station is None:
            station = StationProcess()


def carry_out(
    order: dict[str, Any], limit_s: float = STEP_S
) -> tuple[str, Any, list[dict[str, Any]]]:
    """Let the station carry an order out; start a station if there is none.

    Parameters
    ----------
    order : dict
        As of `fewtune.fleet.station.Station.answer`.
    limit_s : float
        A station that has the device and sends nothing for so many seconds is killed.

    Returns
    -------
    kind : str
        ``ok``; ``error`` or ``fault``; ``died`` or ``hung``, after which there is another station.
    content : object
        The answer; the error's class and text, or the fault; what ended the station.
    events : list of dict
        The events of the order up to then.
    """
    global station
    with _lock:
        if station is None:
            station = StationProcess()
        answer = station.ask(order, limit_s)
        if answer[0] in ("died", "hung"):
            station = None
        return answer


def command(address: str, extra: list[str]) -> list[str]:
    """The command that runs a Dask worker with one device, restarted when it dies."""
    return [
        sys.executable,
        "-m",
        "distributed.cli.dask_worker",
        address,
        *("--nthreads", "1", "--nworkers", "1", "--resources", f"{RESOURCE}=1"),
        # Tuning has its own memory limits, and Dask holds none of its data.
        *("--memory-limit", "0", "--no-dashboard", "--preload", __name__),
        *extra,
    ]
