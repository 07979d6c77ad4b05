"""Sessions that a machine of a fleet keeps between orders, and their journals.

Their journal lies with the client. Each appended event goes immediately to the process that gave
the station its order, so that it survives this process. The client gets the events with the answer.
"""

from __future__ import annotations

import json
import queue
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, TextIO, cast

from fewtune.artifacts import TaskInfo
from fewtune.measure.device import Device
from fewtune.progress.progress import Progress
from fewtune.runtime.tvm import module_of
from fewtune.storage.journal import Journal
from fewtune.task.extract import Task
from fewtune.tuning.job import TuneJob, Workplace
from fewtune.tuning.session import Session
from fewtune.workers.pool import WorkerPool

Events = list[dict[str, Any]]
Send = Callable[[dict[str, Any]], None]
_BEGUN = "start"
# The entries that a client adds to an event: its clock, and the event's machine.
_CLIENTS = {"elapsed_s", "stolen_s", "on"}


class EventLog(Journal):
    """A journal that lies with the client.

    Parameters
    ----------
    events : list of dict
        The events of the client's journal.
    send : callable
        Gets each event that is appended.
    wait : callable, optional
        Called when a batch is complete and something else begins; returns when the client has it.

    Attributes
    ----------
    own : list of dict
        What was appended here.
    """

    def __init__(self, events: Events, send: Send, wait: Callable[[], None] | None = None) -> None:
        self.path = Path("the client's journal")
        self.events = events
        self.own: Events = []
        self._send, self._wait = send, wait
        self._is_ahead = False

    def append(self, event: dict[str, Any]) -> None:
        """Send an event; before something begins, let the client fetch what was measured."""
        if event["kind"] == _BEGUN:
            self.hand_over()
        else:
            self._is_ahead = True
        # The event in the form that the client reads from its journal.
        self.own.append(json.loads(json.dumps(event)))
        self._send(self.own[-1])

    def hand_over(self) -> None:
        """Wait until the client has everything."""
        if self._is_ahead and self._wait is not None:
            self._is_ahead = False
            self._wait()

    def close(self) -> None:
        """Do nothing: no file is open."""

    def unfetched(self, known: Events) -> Events:
        """The events that were appended here after the last one that a client knows."""
        theirs = {_text(event) for event in known}
        ahead: Events = []
        for event in reversed(self.own):
            if event["kind"] != _BEGUN and _text(event) in theirs:
                break
            ahead.insert(0, event)
        return ahead if any(event["kind"] != _BEGUN for event in ahead) else []

    def is_all_of(self, known: Events) -> bool:
        """Whether a client knows exactly the events of this journal."""
        return [_text(e) for e in [*self.events, *self.own]] == [_text(e) for e in known]


class TuningSession:
    """The tasks of a run that this machine measures; each order is one step."""

    is_done = False

    def __init__(self, order: dict[str, Any], device: Device, pool: WorkerPool, send: Send) -> None:
        job = TuneJob.from_json(order["job"])
        self.log = EventLog(list(order["events"]), send)
        self._session = Session(
            [task_of(each) for each in order["tasks"]],
            job.tuned,
            device.target,
            job.options,
            self.log,
            Progress(stream=cast(TextIO, _Silent())),
            pool,
            seeds=job.seeds,
            cold_weights=job.cold_weights,
            device=device,
        )

    @property
    def most_flops_s(self) -> float:
        """Operations a second that the machine can do; infinite where unknown."""
        return self._session.measurer.most_flops_s

    def step(self, order: dict[str, Any]) -> None:
        """Measure what the order names."""
        session, what = self._session, order["what"]
        states = [session.state.tasks[name] for name in order["of"]]
        if what == "default":
            session.measure_defaults(states)
        elif what == "batch":
            session.batch(states, order["room"])
        else:
            session.hold_duels(states)


class WholeSession:
    """A whole session, such as sharing, that waits after each batch for the next order."""

    most_flops_s = float("inf")

    def __init__(self, order: dict[str, Any], device: Device, pool: WorkerPool, send: Send) -> None:
        self._steps_done: queue.Queue[tuple[bool, Exception | None]] = queue.Queue()
        self._go = threading.Semaphore(0)
        self.log = EventLog(list(order["events"]), send, self._hand_over)
        self._scratch = tempfile.TemporaryDirectory(prefix="fewtune-")
        self.is_done = False
        arguments = (order, device, pool)
        self._thread = threading.Thread(target=self._run, args=arguments, daemon=True)
        self._thread.start()

    def step(self, _order: dict[str, Any]) -> None:
        """Let it go on for a batch."""
        if self.is_done:
            return
        self._go.release()
        self.is_done, fault = self._steps_done.get()
        if fault is not None:
            raise fault

    def _hand_over(self) -> None:
        self._steps_done.put((False, None))
        self._go.acquire()

    def _run(self, order: dict[str, Any], device: Device, pool: WorkerPool) -> None:
        self._go.acquire()
        fault: Exception | None = None
        try:
            tasks = [task_of(each) for each in order["tasks"]]
            progress = Progress(stream=cast(TextIO, _Silent()))
            place = Workplace(tasks, device.target, self.log, progress, pool, device)
            resolve_name(order["work"]).from_json(self._unpacked(order)).run(place)
        except Exception as raised:  # noqa: BLE001 (the client raises it)
            fault = raised
        finally:
            self._scratch.cleanup()
        self._steps_done.put((True, fault))

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
    """A stream that drops its text: a station has no terminal."""

    def isatty(self) -> bool:
        return False

    def write(self, _text: str) -> None:
        """Drop it."""

    def flush(self) -> None:
        """Nothing is held."""


def task_of(packed: list[Any]) -> Task:
    """A task from the form in which it is sent: its description, and its module as TVM JSON."""
    info, text = packed
    return Task(TaskInfo.model_validate(info), module_of(text))


def _text(event: dict[str, Any]) -> str:
    """An event as text, without the entries that a client adds."""
    kept = {key: value for key, value in event.items() if key not in _CLIENTS}
    return json.dumps(kept, sort_keys=True)
