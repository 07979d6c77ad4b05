"""The process that measures on a machine of a fleet: sessions that measure a batch for each order.

The station is a process of its own below the Dask worker. So a crash of TVM costs one task and not
the worker, and the station can begin with a fork server (`fewtune.workers.fork_server`). It holds
the device's lock while it works. Tasks and events are sent once: later orders name the session.
Results that no client fetched go to the next client with the run's whole journal: a client that was
killed gets its last batch when it returns.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from fewtune.artifacts import Fingerprint
from fewtune.errors import FewtuneError, last_line
from fewtune.fleet.description import describe
from fewtune.fleet.sessions import TuningSession, WholeSession
from fewtune.fleet.worker import BEGUN, EVENT, FETCH
from fewtune.machine.device_lock import device_lock, device_name
from fewtune.measure.device import Device, device_of
from fewtune.process.warm import warm_process
from fewtune.process.warm_server import load
from fewtune.workers.pool import WorkerPool

# Sessions that are kept, one for each run; a dropped one is made again from the client's journal.
_MOST_SESSIONS = 16

# Modules that orders need, loaded while there is no order.
_WANTED = (
    "fewtune.runtime.tvm:register_own_intrinsics",
    "fewtune.util.xgboost_alone:xgboost_alone",
    "fewtune.sharing.session",
    "fewtune.sharing.child",
)


class Station:
    """Answers orders of clients, one at a time.

    Parameters
    ----------
    send : callable
        Gets `BEGUN` when the device is free, after which an order should not take long. Gets
        (`EVENT`, event) for each event.
    """

    def __init__(self, send: Callable[[tuple[Any, ...]], None]) -> None:
        self._send = send
        self._device: Device | None = None
        self._pool: WorkerPool | None = None
        self._sessions: dict[str, TuningSession | WholeSession] = {}

    def close(self) -> None:
        """End the workers."""
        if self._pool is not None:
            self._pool.close()
        self._device, self._pool, self._sessions = None, None, {}

    def answer(self, order: dict[str, Any]) -> dict[str, Any]:
        """Carry an order out.

        Parameters
        ----------
        order : dict
            ``describe`` the machine. Or ``key`` of a session, its ``fingerprint``, ``count`` of its
            events that the client has, and ``what`` is to be measured ``of`` which tasks; or the
            ``work`` to continue. A client that does not know of a session here gives no count, but
            the ``tasks``, the ``job``, and all its ``events``.

        Returns
        -------
        answer : dict
            The description. Or ``count`` of the session's events, ``is_done``, and
            ``most_flops_s`` of the machine; or ``lacks``, if there is no such session.
        """
        if "describe" in order:
            self._send(BEGUN)
            return describe(order["describe"])
        own = Fingerprint.model_validate(order["fingerprint"])
        with device_lock(device_name(own), f"fleet {order['purpose']}"):
            self._send(BEGUN)
            self._get_ready(own)
            session = self._sessions.pop(order["key"], None)
            if session is not None:
                self._sessions[order["key"]] = session
            if order["count"] is None:
                if session is not None and order.get("what", FETCH) == FETCH:
                    for event in (ahead := session.log.unfetched(order["events"])):
                        self._send((EVENT, event))
                    if ahead:
                        return self._answer_of(session)
                if order.get("what") == FETCH:
                    return {"lacks": False, "count": 0, "is_done": False}
                if session is None or not session.log.is_all_of(order["events"]):
                    session = self._made(order)
            elif session is None or len(session.log.own) != order["count"]:
                return {"lacks": True}
            try:
                session.step(order)
            except Exception:
                # The failed session ends here: the next one begins from the journal.
                del self._sessions[order["key"]]
                raise
            return self._answer_of(session)

    def _made(self, order: dict[str, Any]) -> TuningSession | WholeSession:
        """A session that begins with the client's events."""
        assert self._device is not None
        assert self._pool is not None

        def send(event: dict[str, Any]) -> None:
            self._send((EVENT, event))

        self._sessions.pop(order["key"], None)
        if len(self._sessions) == _MOST_SESSIONS:
            # The one that was used longest ago.
            del self._sessions[next(iter(self._sessions))]
        kind = WholeSession if "work" in order else TuningSession
        made = self._sessions[order["key"]] = kind(order, self._device, self._pool, send)
        return made

    @staticmethod
    def _answer_of(session: TuningSession | WholeSession) -> dict[str, Any]:
        return {
            "lacks": False,
            "count": len(session.log.own),
            "is_done": session.is_done,
            "most_flops_s": session.most_flops_s,
        }

    def _get_ready(self, own: Fingerprint) -> None:
        if self._device is None or self._device.fingerprint != own:
            self.close()
            self._device = device_of(own)
            self._pool = self._device.open()


def _serve(connection: Connection) -> None:
    station, wanted = Station(connection.send), list(_WANTED)
    try:
        while True:
            while wanted and not connection.poll():
                # What fails here fails again where it is needed, and is reported there.
                with suppress(Exception):
                    load(wanted.pop(0))
            order = connection.recv()
            try:
                connection.send(("ok", station.answer(order)))
            except FewtuneError as fault:
                connection.send(("error", [type(fault).__name__, str(fault)]))
            except Exception as fault:  # noqa: BLE001 (the fault of a task, or of this software)
                # Into the Dask worker's log: the client is sent a line.
                traceback.print_exception(fault)
                connection.send(("fault", f"{type(fault).__name__}: {last_line(fault)}"))
    except (EOFError, ConnectionResetError, BrokenPipeError):
        return
    finally:
        station.close()


if __name__ == "__main__":
    with warm_process(["fewtune.workers.worker"]):
        _serve(Connection(int(sys.argv[1])))
