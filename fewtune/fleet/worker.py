"""What Dask calls on a fleet's machine: sessions below its worker, a process each (`station`).

So a crash of TVM costs one task and not the worker, which loads no TVM itself.
"""

from __future__ import annotations

import socket
import sys
import threading
from contextlib import ExitStack
from functools import cache
from typing import Any, NamedTuple

import fewtune
from fewtune.artifacts import Fingerprint
from fewtune.errors import FewtuneError
from fewtune.machine.fingerprint import FingerprintOptions, detect_fingerprint
from fewtune.machine.host import last_level_cache_bytes, own_cache_bytes
from fewtune.process.apart import Job, run_apart
from fewtune.process.child_python import TVM, end_by_interrupts, ending, started
from fewtune.process.warm import warm_process

RESOURCE = "device"
# Seconds without news after which a session that has the device is killed: a batch takes seconds,
# or a few minutes for a huge kernel.
_SILENCE_S = 900.0
# Sessions that are kept at once, those of clients that were killed included.
_MOST_SESSIONS = 4
_WARM = (TVM, "fewtune.fleet.station", "fewtune.workers.worker", "fewtune.sharing.session")

_lock = threading.Lock()
# By its key. They outlive the functions that Dask calls.
sessions: dict[str, SessionProcess] = {}


class Answer(NamedTuple):
    """What came of an order.

    Attributes
    ----------
    kind : {"batch", "done", "lacks", "error", "fault", "died", "lost"}
        There is more to do; all is done; no session has that key; an error that a user can mend;
        another exception, or the end of the process, which are the fault of the task begun last;
        the machine is gone.
    events : list of dict
        What the session journaled meanwhile.
    text : str
        The error's message; the exception in a line; what ended the process.
    error : FewtuneError or None
    """

    kind: str
    events: list[dict[str, Any]]
    text: str = ""
    error: FewtuneError | None = None


class SessionProcess:
    """The process of a session, which waits for an order before each batch."""

    def __init__(self, whole: dict[str, Any]) -> None:
        self.process, self._connection = started(
            "fewtune.fleet.station:serve",
            shows_output=True,
            environment={"OPENBLAS_NUM_THREADS": "1"},
        )
        self._connection.send(whole)

    def step(self, silence_s: float) -> Answer:
        """Let it measure a batch."""
        events: list[dict[str, Any]] = []
        try:
            self._connection.send("go")
            # Another run may hold the device: that is waited for without a limit.
            kind, *content = self._connection.recv()
            while kind in ("begun", "event"):
                events += content
                if not self._connection.poll(silence_s):
                    self.kill()
                    return Answer("died", events, f"hung: no answer in {silence_s:g} s")
                kind, *content = self._connection.recv()
            return Answer(kind, events, *content)
        except (EOFError, ConnectionResetError, BrokenPipeError):
            return Answer("died", events, f"its process {ending(self.process.wait())}")

    def kill(self) -> None:
        """End it; its workers end with it."""
        self._connection.close()
        self.process.kill()
        self.process.wait()


def dask_setup(_worker: Any = None) -> None:
    """Load TVM, which takes seconds, for the processes to come. Dask calls this at its start."""
    if threading.current_thread() is threading.main_thread():
        # Dask reports an interrupt by a traceback of each worker.
        end_by_interrupts()
    with _lock:
        _warmed()


@cache
def _warmed() -> ExitStack:
    """The warm process, which is kept until this process ends."""
    kept = ExitStack()
    kept.enter_context(warm_process(_WARM, is_for_cpu=True))
    return kept


def carry_out(key: str, whole: dict[str, Any] | None, silence_s: float = _SILENCE_S) -> Answer:
    """Let a session measure a batch.

    Parameters
    ----------
    key : str
        Of the session.
    whole : dict, optional
        What it is made of (`fewtune.fleet.station.serve`), unless it is here already.
    silence_s : float
        A session that has the device and sends nothing for so many seconds is killed.
    """
    dask_setup()
    with _lock:
        if whole is not None:
            while len(sessions) >= _MOST_SESSIONS:
                sessions.pop(next(iter(sessions))).kill()
            sessions[key] = SessionProcess(whole)
        session = sessions.get(key)
        if session is None:
            return Answer("lacks", [])
        answer = session.step(silence_s)
        if answer.kind != "batch":
            sessions.pop(key).kill()
        return answer


class _Describe(Job):
    options: FingerprintOptions

    def run(self) -> list[Any]:
        own = detect_fingerprint(self.options.model_copy(update={"device": "here"}))
        return [socket.gethostname(), class_of(own)]


def describe(options: FingerprintOptions) -> list[Any]:
    """The host's name, and this machine's class."""
    return run_apart(_Describe(options=options))


def class_of(own: Fingerprint) -> dict[str, Any]:
    """What has to be equal for times of two machines to be comparable, on one of them."""
    return {
        "CPU": own.device,
        "target": own.target,
        "threads": own.threads,
        "system": own.system,
        "caches": [own_cache_bytes(), last_level_cache_bytes()],
        "TVM": own.versions["apache-tvm"],
        "fewtune": fewtune.__version__,
    }


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
