"""What a machine of a fleet runs: sessions that measure a batch when they are asked for one.

The station is a process of its own below the Dask worker, so that a crash of TVM costs one task and
not the worker, and so that it can begin with a fork server (`fewtune.workers.fork_server`). It
holds the device's lock while it works. What it measured and nobody fetched is given to the next
that asks for the same step: a client that was killed gets its last batch when it is back.
"""

from __future__ import annotations

import json
import queue
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TextIO, cast

from fewtune.artifacts import Fingerprint, TaskInfo
from fewtune.errors import FewtuneError
from fewtune.fleet.description import describe
from fewtune.fleet.worker import BEGUN
from fewtune.machine.device_lock import device_lock, device_name
from fewtune.measure.device import Device, device_of
from fewtune.progress.progress import Progress
from fewtune.runtime.tvm import module_of
from fewtune.storage.journal import Journal
from fewtune.task.extract import Task
from fewtune.tuning.job import TuneJob
from fewtune.tuning.session import Session
from fewtune.util.child_python import load
from fewtune.workers.fork_server import ForkServer
from fewtune.workers.pool import WorkerPool

Events = list[dict[str, Any]]
# What is begun is told with what comes of it.
_BEGUN = "start"
# Sessions that are kept: a lost one is made again of the client's journal.
_MOST_SESSIONS = 64
# By its own clock a machine knows nothing of a client's.
_CLOCKS = {"elapsed_s", "stolen_s"}

# What orders will need, loaded while there is none.
_WANTED = (
    "fewtune.runtime.intrinsics:register_own",
    "fewtune.util.xgboost_alone:xgboost_alone",
    "fewtune.sharing.session",
    "fewtune.sharing.child",
)


class EventLog(Journal):
    """A journal that lies with the client: what is appended here is handed over.

    Parameters
    ----------
    events : list of dict
        What the client's journal holds.
    take : callable, optional
        Called with what was appended whenever a batch is complete; may wait.
    """

    def __init__(self, events: Events, take: Callable[[Events], None] | None = None) -> None:
        self.path = Path("the client's journal")
        self.events = events
        self.appended: Events = []
        self._take = take

    def append(self, event: dict[str, Any]) -> None:
        # As the client will have it when it reads its journal again.
        self.appended.append(json.loads(json.dumps(event)))
        if self._take is not None and event["kind"] != _BEGUN:
            appended, self.appended = self.appended, []
            self._take(appended)

    def close(self) -> None:
        """Nothing is open."""


class _Tuning:
    """One task's session, of which one step is asked for at a time."""

    def __init__(self, order: dict[str, Any], device: Device, pool: WorkerPool) -> None:
        job, task = TuneJob.from_json(order["job"]), task_of(order["tasks"][0])
        self.events: Events = list(order["events"])
        self._log = EventLog(list(self.events))
        name = task.info.name
        self._session = Session(
            [task],
            [name],
            device.target,
            job.options,
            self._log,
            Progress(stream=cast(TextIO, _Silent())),
            pool,
            seeds={name: job.seeds.get(name, [])},
            cold_weights=job.cold_weights,
            device=device,
        )
        (self._state,) = self._session.state.tasks.values()

    def step(self, order: dict[str, Any]) -> Events:
        """Measure what is asked for; the events of it."""
        session, what = self._session, order["what"]
        if what == "default":
            session.measure_defaults(session.without_default())
        elif what == "batch":
            session.batch([self._state], order["room"])
        else:
            session.hold_duels([self._state])
        appended, self._log.appended = self._log.appended, []
        # All that happens here is of one task, and told apart by it at the client.
        appended = [{"task": self._state.task.info.name, **event} for event in appended]
        self.events += appended
        return appended

    def unfetched(self, order: dict[str, Any]) -> Events | None:
        """What was measured beyond what a client knows; None where it knows something else."""
        known = order["events"]
        ahead = len(self.events) - len(known)
        if ahead < 0 or _plain(self.events[: len(known)]) != _plain(known):
            return None
        return self.events[len(known) :]


class _Work:
    """A whole session, such as sharing, that waits after each batch until it is asked for more."""

    def __init__(self, order: dict[str, Any], device: Device, pool: WorkerPool) -> None:
        self.events: Events = list(order["events"])
        self._told: queue.Queue[tuple[Events, bool, Exception | None]] = queue.Queue()
        self._go = threading.Semaphore(0)
        self._log = EventLog(list(self.events), self._hand_over)
        self._scratch = tempfile.TemporaryDirectory(prefix="fewtune-")
        self.is_done = False
        arguments = (order, device, pool)
        self._thread = threading.Thread(target=self._run, args=arguments, daemon=True)
        self._thread.start()

    def step(self, _order: dict[str, Any]) -> Events:
        """Let it go on for a batch; the events of it."""
        self._go.release()
        appended, self.is_done, fault = self._told.get()
        self.events += appended
        if fault is not None:
            raise fault
        return appended

    def unfetched(self, order: dict[str, Any]) -> Events | None:
        """As `_Tuning.unfetched`."""
        return _Tuning.unfetched(self, order)  # type: ignore[arg-type]

    def _hand_over(self, events: Events) -> None:
        self._told.put((events, False, None))
        self._go.acquire()

    def _run(self, order: dict[str, Any], device: Device, pool: WorkerPool) -> None:
        self._go.acquire()
        fault: Exception | None = None
        try:
            module, function = order["work"].split(":")
            getattr(import_module(module), function)(
                self._unpacked(order),
                [task_of(each) for each in order["tasks"]],
                device.fingerprint.target,
                self._log,
                Progress(stream=cast(TextIO, _Silent())),
                pool,
                device,
            )
        except Exception as raised:  # noqa: BLE001 (told to the client, who raises it)
            fault = raised
        finally:
            self._scratch.cleanup()
        self._told.put((self._log.appended, True, fault))

    def _unpacked(self, order: dict[str, Any]) -> dict[str, Any]:
        """The job, with the folders that it reads written here."""
        job = dict(order["job"])
        for name, files in order["folders"].items():
            folder = Path(self._scratch.name) / name
            for path, content in files.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(content)
            job[name] = str(folder)
        return job


class _Silent:
    """Nobody watches a station."""

    def isatty(self) -> bool:
        return False

    def write(self, _text: str) -> None:
        """Drop it."""

    def flush(self) -> None:
        """Nothing is held."""


class Station:
    """Answers orders of clients, one at a time.

    Parameters
    ----------
    fork_server : ForkServer, optional
        Forks the workers.
    """

    def __init__(self, fork_server: ForkServer | None = None) -> None:
        self._fork_server = fork_server
        self._device: Device | None = None
        self._pool: WorkerPool | None = None
        self._sessions: dict[str, _Tuning | _Work] = {}

    def close(self) -> None:
        """End the workers."""
        if self._pool is not None:
            self._pool.close()
        self._device, self._pool, self._sessions = None, None, {}

    def answer(self, order: dict[str, Any], begin: Callable[[], None]) -> dict[str, Any]:
        """Carry an order out.

        Parameters
        ----------
        order : dict
            ``describe`` the machine; or ``key`` of a session, ``fingerprint``, ``tasks``, ``job``,
            ``events`` that the client has, and ``what`` is to be measured, or the ``work`` that
            goes on.
        begin : callable
            Called when the device is free, from when on it should not take long.

        Returns
        -------
        answer : dict
            The description; or ``events``, and ``is_done``.
        """
        if "describe" in order:
            begin()
            return describe(order["describe"])
        own = Fingerprint.model_validate(order["fingerprint"])
        with device_lock(device_name(own), f"fleet {order['purpose']}"):
            begin()
            self._get_ready(own)
            assert self._device is not None
            assert self._pool is not None
            known = self._sessions.pop(order["key"], None)
            events = known.unfetched(order) if known is not None else None
            if known is None or events is None:
                kind = _Work if "work" in order else _Tuning
                known = kind(order, self._device, self._pool)
            self._sessions[order["key"]] = known
            if len(self._sessions) > _MOST_SESSIONS:
                # The one that was not asked for longest.
                del self._sessions[next(iter(self._sessions))]
            is_done = isinstance(known, _Work) and known.is_done
            events = events or ([] if is_done else known.step(order))
            return {"events": events, "is_done": isinstance(known, _Work) and known.is_done}

    def _get_ready(self, own: Fingerprint) -> None:
        if self._device is None or self._device.fingerprint != own:
            self.close()
            self._device = device_of(own)
            self._pool = self._device.open(self._fork_server)


def task_of(packed: list[Any]) -> Task:
    """A task as it travels: its description, and its module as TVM JSON."""
    info, text = packed
    return Task(TaskInfo.model_validate(info), module_of(text))


def _plain(events: Events) -> Events:
    return [{key: value for key, value in e.items() if key not in _CLOCKS} for e in events]


def _serve(connection: Connection, fork_server: ForkServer) -> None:
    station, wanted = Station(fork_server), list(_WANTED)
    try:
        while True:
            while wanted and not connection.poll():
                # What fails here fails again, and is told, where it is needed.
                with suppress(Exception):
                    load(wanted.pop(0))
            order = connection.recv()
            try:
                begin = partial(connection.send, BEGUN)
                connection.send(("ok", station.answer(order, begin)))
            except FewtuneError as fault:
                connection.send(("error", type(fault).__name__, str(fault)))
            except Exception as fault:  # noqa: BLE001 (a fault of this software is told as one)
                connection.send(("fault", f"{type(fault).__name__}: {fault}"))
    except (EOFError, ConnectionResetError, BrokenPipeError):
        return
    finally:
        station.close()


if __name__ == "__main__":
    # Before anything else: what it forks is as clean as this process is now.
    _FORK_SERVER = ForkServer()
    _serve(Connection(int(sys.argv[1])), _FORK_SERVER)
