"""Orders to a fleet's machines, and what becomes of them: events, a crash, or a machine lost."""

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
# What is done takes so long to come at most: it is small.
_FETCH_S = 5.0


class Answer(NamedTuple):
    """What became of an order.

    Attributes
    ----------
    events : list of dict
    is_done : bool
    died : str
        What the process that measured died of; empty where it lives.
    lost : bool
        The machine is gone: the order is to be given to another one.
    """

    events: list[dict[str, Any]]
    is_done: bool = False
    died: str = ""
    lost: bool = False


class _Given(NamedTuple):
    machine: str
    label: Any


@dataclass
class Orders:
    """The orders that machines of a fleet are at, one each.

    Parameters
    ----------
    cluster : Cluster
    fingerprint : Fingerprint
        Of the fleet.
    carry_out : callable
        What a machine is to do with an order.
    """

    cluster: Cluster
    fingerprint: Fingerprint
    carry_out: Callable[[dict[str, Any]], tuple[Any, ...]] = carry_out
    machines: dict[str, Machine] = field(default_factory=dict)
    _given: dict[distributed.Future, _Given] = field(default_factory=dict)
    _class: dict[str, Any] | None = None
    _bell: threading.Event = field(default_factory=threading.Event)

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
        """See which machines are there; wait for one where all are gone."""
        self.machines = self.cluster.wait_for_machines(self._class)

    @property
    def idle(self) -> list[str]:
        """Machines that are at nothing."""
        busy = {given.machine for given in self._given.values()}
        return sorted(self.machines.keys() - busy)

    @property
    def busy(self) -> int:
        """How many are at something."""
        return len(self._given)

    def give(self, machine: str, label: Any, order: dict[str, Any]) -> None:
        """Send an order to a machine; ``label`` comes back with its answer."""
        own = self.fingerprint.model_copy(update={"at": ""})
        order = {**order, "fingerprint": own.model_dump(mode="json")}
        future = self.cluster.submit(self.carry_out, order, machine=machine)
        self._given[future] = _Given(machine, label)
        future.add_done_callback(lambda _: self._bell.set())

    def next_answer(self) -> tuple[str, Any, Answer] | None:
        """Wait for an order to be done or its machine lost: the machine, the label, the answer.

        None where another machine has come meanwhile.

        Raises
        ------
        FewtuneError
            What a machine says that the user can mend.
        """
        while True:
            for future, given in list(self._given.items()):
                if future.done():
                    del self._given[future]
                    return given.machine, given.label, self._answer(future, given)
            there = self.cluster.addresses()
            for future, given in list(self._given.items()):
                if given.machine not in there:
                    del self._given[future]
                    future.cancel(force=True)
                    return given.machine, given.label, self._lost(given)
            if self.cluster.has_new():
                self.look()
                return None
            self._bell.wait(_POLL_S)
            self._bell.clear()

    def _answer(self, future: distributed.Future, given: _Given) -> Answer:
        try:
            kind, *told = future.result(timeout=_FETCH_S)
        except Exception as fault:  # noqa: BLE001 (killed, cancelled, lost: Dask has many names)
            if isinstance(fault, TimeoutError) or given.machine not in self.cluster.addresses():
                # Done, and gone with its machine before it was fetched.
                future.cancel(force=True)
                return self._lost(given)
            raise MachineError(
                f"{given.machine} cannot do what it is asked: {type(fault).__name__}: {fault}"
            ) from fault
        if kind == "ok":
            return Answer(told[0]["events"], told[0]["is_done"])
        if kind == "error":
            fault_class = getattr(errors, told[0], FewtuneError)
            raise fault_class(f"{given.machine}: {told[1]}")
        if kind == "fault":
            raise RuntimeError(f"{given.machine}: {told[0]}")
        return Answer([], died=f"{told[0]}" if kind == "died" else f"{kind}: {told[0]}")

    def _lost(self, given: _Given) -> Answer:
        self.machines.pop(given.machine, None)
        return Answer([], lost=True)


def packed(task: Task) -> list[Any]:
    """A task as it travels (`fewtune.fleet.station.task_of`)."""
    return [task.info.model_dump(mode="json"), tvm.ir.save_json(task.mod)]


def options_of(fingerprint: Fingerprint) -> FingerprintOptions:
    """What machines of a fleet are asked for."""
    return FingerprintOptions(threads=fingerprint.threads, device=fingerprint.at)
