"""A fleet as a device: the measuring work of a stage is divided among its machines.

A tuning session is divided among the machines: each takes a part of the tasks, with their part of
the budget, and keeps it, so that races compare times of one machine. Other work, such as
sharing, is one part. A part is a session on its machine, which measures a batch for each order. The
result of a batch is in the journal before the next one is ordered. If a machine is lost, another
one goes on with its part from the journal.

Dask's workers run any code that a client sends, and both sides read each other's pickles. So the
machines of a fleet have to trust each other. TLS is Dask's (`docs/devices.md`).
"""

from __future__ import annotations

import logging
import pickle
import re
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import distributed

from fewtune.artifacts import Fingerprint
from fewtune.errors import InputError, MachineError
from fewtune.fleet.worker import RESOURCE, Answer, carry_out, class_of, describe
from fewtune.machine.fingerprint import FingerprintOptions, detect_fingerprint
from fewtune.measure.device import Here, device_of
from fewtune.progress.progress import Progress
from fewtune.storage.journal import Journal
from fewtune.task.extract import Task
from fewtune.tuning.job import SessionJob
from fewtune.tuning.state import RunState, Start, crash_text
from fewtune.tuning.tune import TuneJob

LOCAL = "local:"
_CONNECT_S, _DESCRIBE_S = 5, 60
# Seconds to wait for the first machine, or for one that replaces a lost one.
_COME_S = 60.0
_POLL_S = 0.25
_SAY = partial(print, file=sys.stderr, flush=True)


class Cluster:
    """A connection to a cluster; ends what it started.

    Parameters
    ----------
    at : str
        ``tcp://HOST:PORT`` or ``tls://...`` of a scheduler, or ``local:N`` for N workers here.
    options : FingerprintOptions
        The requested number of threads.
    say : callable
        Gets a line about a machine that is refused or lost.

    Raises
    ------
    InputError, MachineError
        If the address is wrong, or no scheduler answers there.
    """

    def __init__(
        self, at: str, options: FingerprintOptions, say: Callable[[str], object] = _SAY
    ) -> None:
        self._at, self._options, self._say = at, options, say
        self._known: dict[str, tuple[str, dict[str, Any]]] = {}
        self._refused: set[str] = set()
        self._own: Any = None
        if at.startswith(LOCAL):
            self._own = distributed.LocalCluster(
                n_workers=workers_here(at),
                threads_per_worker=1,
                resources={RESOURCE: 1},
                memory_limit=0,
                dashboard_address=None,
                preload=[describe.__module__],
                # What a lost machine means is said by the fleet; Dask adds tracebacks.
                silence_logs=logging.CRITICAL,
            )
        # One that does not connect is closed here: the garbage collector may close it while Dask
        # starts another, and both wait for each other.
        self.client = distributed.Client.__new__(distributed.Client)
        try:
            distributed.Client.__init__(
                self.client, self._own or at, timeout=_CONNECT_S, set_as_default=False
            )
        except TypeError:
            self.__exit__()
            # Dask raises this if it has no certificates.
            raise MachineError(
                f"{at} is reached by TLS, and no certificate is set: set "
                "DASK_DISTRIBUTED__COMM__TLS__CA_FILE, .._CLIENT__CERT and .._CLIENT__KEY"
            ) from None
        except (OSError, ValueError) as error:
            self.__exit__()
            raise MachineError(
                f"no Dask scheduler answers at {at} ({str(error).splitlines()[0]}): start one with "
                "`dask scheduler`, and workers with `fewtune worker`"
            ) from None

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exception: object) -> None:
        """Disconnect from the scheduler; end workers that were started here."""
        with suppress(Exception):
            self.client.close(timeout=5)
        if self._own is not None:
            with suppress(Exception):
                self._own.close(timeout=10)

    def addresses(self) -> set[str]:
        """Workers with a device that the scheduler knows now."""
        workers = self.client.scheduler_info(n_workers=-1)["workers"]
        return {address for address, it in workers.items() if it["resources"].get(RESOURCE)}

    def machines(self, its_class: dict[str, Any]) -> list[str]:
        """Addresses of the machines of a class; each of another class is reported once."""
        fitting = []
        for address in sorted(self.addresses() - self._refused):
            if address not in self._known and not self._describe(address):
                continue
            name, own = self._known[address]
            different = [key for key in own if own[key] != its_class.get(key)]
            if not different:
                fitting.append(address)
                continue
            self._refused.add(address)
            self._say(
                f"{name} is of another class and takes no part: its {different[0]} is "
                f"{own[different[0]]}, this machine's {its_class.get(different[0])}"
            )
        return fitting

    def wait_for_machines(self, its_class: dict[str, Any]) -> list[str]:
        """As `machines`, once there is one.

        Raises
        ------
        MachineError
            If none comes.
        """
        deadline_s = time.monotonic() + _COME_S
        while not (found := self.machines(its_class)):
            there = self.addresses()
            if time.monotonic() > deadline_s or (there and there <= self._refused):
                raise MachineError(
                    f"the cluster at {self._at} has no machine of this one's class: start one with "
                    f"`fewtune worker {self._at}`; what was measured is kept"
                )
            time.sleep(_POLL_S)
        return found

    def submit(
        self, function: Callable[..., Any], *arguments: Any, machine: str
    ) -> distributed.Future:
        """Run a function on one machine, alone on its device."""
        return self.client.submit(
            function,
            *arguments,
            workers=[machine],
            resources={RESOURCE: 1},
            pure=False,
        )

    def _describe(self, address: str) -> bool:
        """Have a machine describe itself; False if it cannot."""
        try:
            described = self.submit(describe, self._options, machine=address)
            host, its_class = described.result(timeout=_DESCRIBE_S)
        except Exception as fault:  # noqa: BLE001 (of another version, it may fail in any way)
            if address in self.addresses():
                self._refused.add(address)
                self._say(f"{address} takes no part: {type(fault).__name__}: {fault}")
            return False
        self._known[address] = f"{address} ({host})", its_class
        return True


def workers_here(at: str) -> int:
    """How many workers ``local:N`` asks for.

    Raises
    ------
    InputError
        If it has another form.
    """
    count = re.fullmatch(r"local:([1-9]\d?)", at)
    if count is None:
        raise InputError(f"cluster {at!r} is none: give local:2 for two workers here")
    return int(count[1])


def fleet_fingerprint(options: FingerprintOptions) -> Fingerprint:
    """The fingerprint of a fleet's machines; this machine has to be of their class.

    Importing, compiling, the check and the benchmark run here; sharing and finals run on one of
    the fleet's machines. What is specific to one machine is left out.

    Raises
    ------
    MachineError
        If no machine of this one's class answers.
    """
    at = options.device
    if at.startswith(LOCAL):
        workers_here(at)
    own = detect_fingerprint(options.model_copy(update={"device": "here"}))
    if not at.startswith(LOCAL):
        with Cluster(at, options) as cluster:
            cluster.wait_for_machines(class_of(own))
    return own.model_copy(update={"at": at, "logical_cores": own.threads})


_MOST_LOSSES = 5
_ANSWER_S = 1.0


def on_fleet(job: SessionJob) -> list[dict[str, Any]]:
    """Carry a job out on a fleet; as `fewtune.tuning.job.supervise`."""
    fingerprint = job.fingerprint
    options = FingerprintOptions(threads=fingerprint.threads, device=fingerprint.at)
    progress = Progress()
    with job.opened() as journal, Cluster(fingerprint.at, options, progress.say) as cluster:
        return FleetRun(job, cluster, journal, progress).run()


@dataclass
class Part:
    """Tasks of a run that one machine measures, in one session at a time.

    ``session`` names the one on its machine, if there is one.
    """

    job: SessionJob
    session: str = ""
    losses: int = 0


def parts_of(job: SessionJob, count: int) -> list[Part]:
    """Deal a tuning session's tasks in turns, the heaviest first; other work is one part."""
    if not isinstance(job, TuneJob):
        return [Part(job)]

    def serves(task: Task) -> float:
        return job.starts.get(task.info.name, Start()).serves

    heaviest = sorted(job.tasks, key=serves, reverse=True)
    dealt = [heaviest[place::count] for place in range(min(count, len(heaviest)))]
    return [Part(job.model_copy(update={"tasks": tasks})) for tasks in dealt]


class FleetRun:
    """One run on a fleet.

    Parameters
    ----------
    job : SessionJob
    cluster : Cluster
    journal : Journal
    progress : Progress
    carry_out : callable
        The function that carries out an order on a machine.
    """

    def __init__(
        self,
        job: SessionJob,
        cluster: Cluster,
        journal: Journal,
        progress: Progress,
        carry_out: Callable[[str, dict[str, Any] | None], Answer] = carry_out,
    ) -> None:
        self._job, self._cluster, self._journal = job, cluster, journal
        self._progress, self._carry_out = progress, carry_out
        self._state: RunState | None = None
        if isinstance(job, TuneJob):
            self._state = job.state(journal.events)
        elapsed_s = max((event.get("elapsed_s", 0.0) for event in journal.events), default=0.0)
        self._began_s = time.perf_counter() - elapsed_s
        self._class = class_of(job.fingerprint)
        machines = cluster.wait_for_machines(self._class)
        self._waiting = deque(parts_of(job, len(machines)))
        self._given: dict[distributed.Future, tuple[str, Part]] = {}
        self._any_done = threading.Event()
        progress.say(f"{len(machines)} machines of {job.fingerprint.at} take part")

    def run(self) -> list[dict[str, Any]]:
        """Do all parts, each on a machine; return the journal's events.

        What waits goes to the next free machine.
        """
        while self._waiting or self._given:
            if self._waiting:
                busy = {machine for machine, _ in self._given.values()}
                for machine in self._cluster.wait_for_machines(self._class):
                    if machine not in busy and self._waiting:
                        self._order(machine, self._waiting.popleft())
            machine, part, answer = self._next_answer()
            self._take(machine, part, answer)
        return self._journal.events

    def _order(self, machine: str, part: Part) -> None:
        whole = None if part.session else self._whole(part)
        part.session = part.session or secrets.token_hex(8)
        future = self._cluster.submit(self._carry_out, part.session, whole, machine=machine)
        self._given[future] = machine, part
        future.add_done_callback(lambda _: self._any_done.set())

    def _whole(self, part: Part) -> dict[str, Any]:
        """What a session is made of (`fewtune.fleet.station.serve`)."""
        names = {task.info.name for task in part.job.tasks}
        is_whole = len(names) == len(self._job.tasks)
        fingerprint = part.job.fingerprint.model_copy(update={"at": ""})
        model = getattr(part.job, "model", None)
        return {
            # The Dask worker, which loads no TVM, only passes it on.
            "job": pickle.dumps(part.job.model_copy(update={"fingerprint": fingerprint})),
            "model": _files(model) if model else None,
            "events": [e for e in self._journal.events if is_whole or names & tasks_of(e)],
        }

    def _next_answer(self) -> tuple[str, Part, Answer]:
        """Wait until an order is done or its machine is lost."""
        while True:
            there = self._cluster.addresses()
            for future, (machine, part) in list(self._given.items()):
                if future.done() or machine not in there:
                    del self._given[future]
                    return machine, part, self._answer(future, machine)
            self._any_done.wait(_ANSWER_S)
            self._any_done.clear()

    def _answer(self, future: distributed.Future, machine: str) -> Answer:
        try:
            if future.done():
                return future.result(timeout=5 * _ANSWER_S)
        except Exception as fault:  # killed, cancelled, lost: Dask has many names
            # The order may be done, and its machine lost before the answer was fetched.
            if not isinstance(fault, TimeoutError) and machine in self._cluster.addresses():
                raise MachineError(
                    f"{machine} cannot do what it is asked: {type(fault).__name__}: {fault}"
                ) from fault
        future.cancel(force=True)
        return Answer("lost", [])

    def _take(self, machine: str, part: Part, answer: Answer) -> None:
        """Journal an answer, and order what is next of its part."""
        for event in answer.events:
            self._note({**event, "on": machine})
        self._show(part)
        if answer.kind == "done":
            return
        if answer.kind == "batch":
            self._order(machine, part)
            return
        # The next order makes a session anew, from the journal.
        part.session = ""
        if answer.kind == "error":
            assert answer.error is not None
            raise type(answer.error)(f"{machine}: {answer.error}")
        if answer.kind in ("fault", "died"):
            begun = [event["task"] for event in answer.events if event["kind"] == "start"]
            if not begun:
                raise RuntimeError(f"{machine}: {answer.text}")
            self._progress.say(f"{begun[-1]} is left out: {crash_text(answer.text)}")
            self._note({"kind": "crash", "task": begun[-1], "signal": answer.text})
        elif answer.kind == "lost":
            part.losses += 1
            if part.losses > _MOST_LOSSES:
                raise MachineError("machine after machine is lost: see what ends them")
            self._progress.say(f"{machine} is lost; what it was at goes on elsewhere")
        self._waiting.append(part)

    def _note(self, event: dict[str, Any]) -> None:
        """Journal an event by this machine's clock, then take it in as a resumed run would."""
        if event["kind"] == "finish" and (self._waiting or self._given):
            # Others go on: the run has not finished. What the part took still counts.
            event = {"kind": "phases", "on": event["on"], "phases": event.get("phases", {})}
        elapsed_s = round(time.perf_counter() - self._began_s, 3)
        event = {**event, "elapsed_s": elapsed_s}
        self._journal.append(event)
        self._journal.events.append(event)
        if self._state is not None:
            self._state.take(event)

    def _show(self, part: Part) -> None:
        if self._state is not None:
            self._progress.show(self._job.snapshot(self._state, part.job.tasks[0].info.name))


def tasks_of(event: dict[str, Any]) -> set[str]:
    """The tasks that an event of a journal is about."""
    return {event.get("task", ""), *event.get("by_task", ()), *event.get("finals", ())}


def _files(root: Path) -> dict[str, bytes]:
    """The files of a folder, by their paths in it."""
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


class Fleet(Here):
    """Machines behind a Dask scheduler, all of the class of this one."""

    runner = staticmethod(on_fleet)
    describe = staticmethod(fleet_fingerprint)

    def __init__(self, fingerprint: Fingerprint) -> None:
        super().__init__(fingerprint)
        here = device_of(fingerprint.model_copy(update={"at": ""}))
        self.can = here.can._replace(locks_itself=True)
