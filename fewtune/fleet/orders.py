"""Orders to a fleet's machines, and their answers: events, a crash, or a lost machine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import distributed

from fewtune import errors
from fewtune.artifacts import Fingerprint
from fewtune.errors import FewtuneError, MachineError
from fewtune.fleet.cluster import Cluster, Machine, class_of
from fewtune.fleet.worker import carry_out
from fewtune.machine.fingerprint import FingerprintOptions
from fewtune.runtime.tvm import tvm
from fewtune.task.extract import Task

_POLL_S = 1.0
# Seconds within which a finished answer has to arrive: it is small.
_FETCH_S = 5.0


class Answer(NamedTuple):
    """The answer to an order.

    Attributes
    ----------
    events : list of dict
    is_done : bool
    died : str
        What ended the process that measured; empty if it is alive.
    lost : bool
        The machine is gone: the order has to go to another one.
    fault : Exception, optional
        The machine's error, which ends the run.
    most_flops_s : float
        Operations a second that the machine can do; infinite if unknown.
    """

    events: list[dict[str, Any]]
    is_done: bool = False
    died: str = ""
    lost: bool = False
    fault: Exception | None = None
    most_flops_s: float = float("inf")

    @property
    def begun_last(self) -> str | None:
        """The task that was begun last: a crash of the process is its fault."""
        begun = [event["task"] for event in self.events if event["kind"] == "start"]
        return begun[-1] if begun else None


def failed(machine: str, kind: str, content: Any, events: list[dict[str, Any]]) -> Answer:
    """The answer of a machine that could not carry an order out.

    Parameters
    ----------
    machine : str
    kind : {"error", "fault", "died", "hung"}
        As of `fewtune.fleet.worker.carry_out`.
    content
        The error's class and text, the exception in a line, or what ended the process.
    events : list of dict
        What was done before.
    """
    if kind == "error":
        fault_class = getattr(errors, content[0], FewtuneError)
        return Answer(events, fault=fault_class(f"{machine}: {content[1]}"))
    if kind == "fault":
        # Within a task, it is that task's, as a crash would be.
        crashed = Answer(events, died=str(content))
        outside = Answer(events, fault=RuntimeError(f"{machine}: {content}"))
        return outside if crashed.begun_last is None else crashed
    return Answer(events, died=str(content) if kind == "died" else f"{kind}: {content}")


class _Given(NamedTuple):
    machine: str
    label: Any
    order: dict[str, Any]
    whole: Callable[[], dict[str, Any]]


@dataclass
class Orders:
    """The present orders of one run, one for each machine of a fleet.

    A machine gets the data of the run once, and keeps a session.

    Parameters
    ----------
    cluster : Cluster
    fingerprint : Fingerprint
        Of the fleet.
    carry_out : callable
        The function that carries out an order on a machine.
    """

    cluster: Cluster
    fingerprint: Fingerprint
    carry_out: Callable[[dict[str, Any]], tuple[str, Any, list[dict[str, Any]]]] = carry_out
    machines: dict[str, Machine] = field(default_factory=dict)
    _given: dict[distributed.Future, _Given] = field(default_factory=dict)
    # By machine with a session of this run: the number of events that came from it.
    _counts: dict[str, int] = field(default_factory=dict)
    _class: dict[str, Any] | None = None
    _any_done: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        found = self.cluster.wait_for_machines()
        self._class = class_of(self.fingerprint, self.cluster.machines()) or class_of(
            self.fingerprint, found
        )
        if self._class is None:
            raise MachineError(
                f"no machine of the cluster at {self.fingerprint.at} is what the fingerprint says "
                f"({self.fingerprint.device}, {self.fingerprint.target}): run its stage again"
            )
        self.look()

    def look(self) -> None:
        """Look which machines exist; wait for one if all are gone."""
        self.machines = self.cluster.wait_for_machines(self._class)

    @property
    def idle(self) -> list[str]:
        """Machines without an order."""
        busy = {given.machine for given in self._given.values()}
        return sorted(self.machines.keys() - busy)

    @property
    def busy(self) -> int:
        """How many machines have an order."""
        return len(self._given)

    def give(
        self,
        machine: str,
        label: Any,
        order: dict[str, Any],
        whole: Callable[[], dict[str, Any]],
    ) -> None:
        """Send an order to a machine.

        Parameters
        ----------
        machine : str
        label : object
            Returned with the answer.
        order : dict
        whole : callable
            Gives the data for a machine without a session of this run (`Station.answer`).
        """
        self._send(_Given(machine, label, order, whole))

    def forget(self, machine: str) -> None:
        """Send the machine all data of the run with its next order."""
        self._counts.pop(machine, None)

    def _send(self, given: _Given) -> None:
        own = self.fingerprint.model_copy(update={"at": ""}).model_dump(mode="json")
        count = self._counts.get(given.machine)
        order = {**given.order, "fingerprint": own, "count": count}
        if count is None:
            order.update(given.whole())
        future = self.cluster.submit(self.carry_out, order, machine=given.machine)
        self._given[future] = given
        future.add_done_callback(lambda _: self._any_done.set())

    def next_answer(self) -> tuple[str, Any, Answer] | None:
        """Wait until an order is done or its machine is lost; return machine, label and answer.

        None if another machine has come meanwhile.

        Raises
        ------
        MachineError
            If a machine cannot take orders.
        """
        while True:
            for future, given in list(self._given.items()):
                if future.done():
                    del self._given[future]
                    answer = self._answer(future, given)
                    if answer is not None:
                        return given.machine, given.label, answer
            there = self.cluster.addresses()
            for future, given in list(self._given.items()):
                if given.machine not in there:
                    del self._given[future]
                    future.cancel(force=True)
                    return given.machine, given.label, self._lost(given)
            if self.cluster.has_new():
                self.look()
                return None
            self._any_done.wait(_POLL_S)
            self._any_done.clear()

    def _answer(self, future: distributed.Future, given: _Given) -> Answer | None:
        """The answer to an order; None if the order was sent again, with all data of the run."""
        try:
            kind, content, events = future.result(timeout=_FETCH_S)
        except Exception as fault:  # killed, cancelled, lost: Dask has many names
            if isinstance(fault, TimeoutError) or given.machine not in self.cluster.addresses():
                # The order was done, but its machine was lost before the answer was fetched.
                future.cancel(force=True)
                return self._lost(given)
            raise MachineError(
                f"{given.machine} cannot do what it is asked: {type(fault).__name__}: {fault}"
            ) from fault
        if kind != "ok":
            self.forget(given.machine)
        elif content["lacks"]:
            self.forget(given.machine)
            self._send(given)
            return None
        else:
            self._counts[given.machine] = content["count"]
            most_flops_s = content.get("most_flops_s", float("inf"))
            return Answer(events, content["is_done"], most_flops_s=most_flops_s)
        return failed(given.machine, kind, content, events)

    def _lost(self, given: _Given) -> Answer:
        self.machines.pop(given.machine, None)
        self.forget(given.machine)
        return Answer([], lost=True)


def packed(task: Task) -> list[Any]:
    """A task as it is sent (`fewtune.fleet.sessions.task_of`)."""
    return [task.info.model_dump(mode="json"), tvm.ir.save_json(task.mod)]


def options_of(fingerprint: Fingerprint) -> FingerprintOptions:
    """The options with which machines of a fleet describe themselves."""
    return FingerprintOptions(threads=fingerprint.threads, device=fingerprint.at)
