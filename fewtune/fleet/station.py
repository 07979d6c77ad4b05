"""The process of a session on a fleet's machine: it measures a batch for each order.

The journal lies with the client. Each event goes at once to the Dask worker, so that it survives
this process, and the client gets the events of a batch before the next one is measured. The device
is locked from an order to its answer.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import tempfile
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fewtune.machine.device_lock import device_lock
from fewtune.measure.device import device_of
from fewtune.process.apart import JobFailedError, as_raised
from fewtune.process.child_python import end_with_parent, parents_connection
from fewtune.progress.progress import Progress
from fewtune.storage.journal import Journal
from fewtune.tuning.job import SessionJob

# A session without an order for so long belongs to a client that is gone, or that makes it anew.
_IDLE_S = 1800.0


class ClientJournal(Journal):
    """A journal that lies with the client.

    Parameters
    ----------
    connection : Connection
        Takes what the client gets, and gives its orders.
    events : list of dict
        The events of the client's journal.
    device : str
        What is locked while an order is carried out.
    """

    def __init__(self, connection: Connection, events: list[dict[str, Any]], device: str) -> None:
        self.path = Path("the client's journal")
        self.events = events
        self._connection = connection
        self._device = device
        self._held = ExitStack()
        self._is_ahead = False

    def append(self, event: dict[str, Any]) -> None:
        """Send an event; before something begins, let the client fetch what was measured."""
        if event["kind"] == "start":
            self.hand_over()
        else:
            self._is_ahead = True
        # In the form that the client reads from its journal.
        self._send(("event", json.loads(json.dumps(event))))

    def hand_over(self) -> None:
        """Wait until the client has everything and orders more."""
        if self._is_ahead:
            self._is_ahead = False
            self.answer("batch")
            self.wait_for_order()

    def answer(self, *content: object) -> None:
        """Let the device go, and answer the order."""
        self._held.close()
        self._send(content)

    def wait_for_order(self) -> None:
        """Wait for an order, then for the device."""
        try:
            if not self._connection.poll(_IDLE_S):
                raise SystemExit
            self._connection.recv()
        except (EOFError, ConnectionResetError):
            raise SystemExit from None
        self._held.enter_context(device_lock(self._device, "a batch of a fleet"))
        self._send(("begun",))

    def _send(self, message: tuple[Any, ...]) -> None:
        try:
            self._connection.send(message)
        except (BrokenPipeError, ConnectionResetError):
            # The machine was killed, and another one goes on.
            raise SystemExit from None

    def close(self) -> None:
        """Let the device go; no file is open."""
        self._held.close()


def serve() -> None:
    """Hold the session that the first message describes.

    ``job`` is a pickled `SessionJob`; ``events`` are those of the client's journal; ``model``, the
    files of the folder of that name in the job, by path.
    """
    end_with_parent()
    connection = parents_connection()
    whole = connection.recv()
    with tempfile.TemporaryDirectory(prefix="fewtune-") as scratch:
        tempfile.tempdir = scratch
        job: SessionJob = pickle.loads(whole["job"])
        if whole["model"] is not None:
            job = job.model_copy(update={"model": Path(scratch, "model")})
            for path, content in whole["model"].items():
                file = Path(scratch, "model", path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
        device = device_of(job.fingerprint)
        journal = ClientJournal(connection, whole["events"], device.lock)
        try:
            journal.wait_for_order()
            with open(os.devnull, "w") as unseen:
                job.hold(journal, Progress(stream=unseen))
            answer: list[object] = ["done"]
        except Exception as fault:  # noqa: BLE001 (the client raises it)
            error = as_raised(fault)
            answer = ["error", str(error), error]
            if isinstance(error, JobFailedError):
                # Into the Dask worker's log: the client is sent a line.
                print(error.trace, file=sys.stderr)
                answer = ["fault", error.line]
        journal.answer(*answer)
