"""A Dask cluster as a fleet: its machines are found, grouped by class, given orders, and lost.

Dask's workers run any code that a client sends, and both sides read each other's pickles. So the
machines of a fleet have to trust each other. TLS is Dask's (`docs/devices.md`).
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import distributed

from fewtune.artifacts import Fingerprint
from fewtune.errors import InputError, MachineError
from fewtune.fleet.description import describe
from fewtune.fleet.worker import RESOURCE, carry_out
from fewtune.machine.fingerprint import FingerprintOptions

LOCAL = "local:"
_CONNECT_S, _DESCRIBE_S = 5, 60
# Seconds to wait for the first machine, or for one that replaces a lost one.
_COME_S = 60.0
_POLL_S = 0.25


class Machine(NamedTuple):
    """One Dask worker with a device.

    Attributes
    ----------
    address : str
    host : str
    its_class : dict
        What has to be equal for times to be comparable.
    fingerprint : dict
    """

    address: str
    host: str
    its_class: dict[str, Any]
    fingerprint: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.address} ({self.host})"


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
        self, at: str, options: FingerprintOptions, say: Callable[[str], None] | None = None
    ) -> None:
        self._at = at
        self._options = options.model_dump(mode="json")
        self._say = say or _say
        self._own: Any = None
        self._known: dict[str, Machine] = {}
        self._refused: set[str] = set()
        if at.startswith(LOCAL):
            self._own = distributed.LocalCluster(
                n_workers=workers_here(at),
                threads_per_worker=1,
                processes=True,
                resources={RESOURCE: 1},
                memory_limit=0,
                dashboard_address=None,
                worker_dashboard_address=None,
                silence_logs=logging.ERROR,
            )
        try:
            self.client = distributed.Client(
                self._own or at, timeout=_CONNECT_S, set_as_default=False
            )
        except TypeError:
            # Dask raises this if it has no certificates.
            raise MachineError(
                f"{at} is reached by TLS, and no certificate is set: set "
                "DASK_DISTRIBUTED__COMM__TLS__CA_FILE, .._CLIENT__CERT and .._CLIENT__KEY"
            ) from None
        except (OSError, ValueError) as error:
            raise MachineError(
                f"no Dask scheduler answers at {at} ({str(error).splitlines()[0]}): start one with "
                "`dask scheduler`, and workers with `fewtune worker`"
            ) from None

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
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

    def has_new(self) -> bool:
        """Whether there is a worker that was not examined yet."""
        return bool(self.addresses() - self._known.keys() - self._refused)

    def machines(self, expected: dict[str, Any] | None = None) -> dict[str, Machine]:
        """Machines by address; those of another class are reported once, and not used.

        Parameters
        ----------
        expected : dict, optional
            A class; that of most machines unless given.
        """
        for address in sorted(self.addresses() - self._known.keys() - self._refused):
            machine = self._described(address)
            if machine is not None:
                self._known[address] = machine
            elif address in self.addresses():
                self._refused.add(address)
        there = self.addresses()
        known = {a: each for a, each in self._known.items() if a in there}
        if expected is None:
            texts = Counter(json.dumps(each.its_class) for _, each in sorted(known.items()))
            expected = json.loads(texts.most_common(1)[0][0]) if texts else {}
        fitting = {}
        for address, each in known.items():
            different = [key for key in each.its_class if each.its_class[key] != expected.get(key)]
            if not different:
                fitting[address] = each
            elif address not in self._refused:
                self._refused.add(address)
                ours, theirs = expected.get(different[0]), each.its_class[different[0]]
                self._say(
                    f"{each.name} is of another class and takes no part: its {different[0]} is "
                    f"{theirs}, the fleet's {ours}"
                )
        return fitting

    def wait_for_machines(self, expected: dict[str, Any] | None = None) -> dict[str, Machine]:
        """As `machines`, once there is one.

        Raises
        ------
        MachineError
            If none comes.
        """
        deadline_s = time.monotonic() + _COME_S
        while not (found := self.machines(expected)):
            if time.monotonic() > deadline_s:
                raise MachineError(
                    f"the cluster at {self._at} has no machine of the class wanted: start one with "
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
            allow_other_workers=False,
            resources={RESOURCE: 1},
            pure=False,
            retries=0,
        )

    def _described(self, address: str) -> Machine | None:
        future = self.submit(carry_out, {"describe": self._options}, machine=address)
        try:
            kind, content, _ = future.result(timeout=_DESCRIBE_S)
            if kind != "ok":
                raise MachineError(str(content))
        except Exception as fault:  # noqa: BLE001 (of another version, it may fail in any way)
            self._say(f"{address} takes no part: {type(fault).__name__}: {fault}")
            return None
        return Machine(address, content["host"], content["class"], content["fingerprint"])


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
    the fleet's machines.

    Raises
    ------
    MachineError
        If no machine answers, or this machine is of another class.
    """
    here = describe(options.model_dump(mode="json"))
    own = here["class"]
    if options.device.startswith(LOCAL):
        workers_here(options.device)
        return fleet_of(Machine("", here["host"], own, here["fingerprint"]), options.device)
    with Cluster(options.device, options) as cluster:
        found = cluster.wait_for_machines()
        first = found[min(found)]
    different = [key for key in own if own[key] != first.its_class.get(key)]
    if different:
        key = different[0]
        raise MachineError(
            f"this machine is not of the fleet's class: its {key} is {own[key]}, that of "
            f"{first.name} {first.its_class.get(key)}; run fewtune on one of the fleet's machines"
        )
    return fleet_of(first, options.device)


def fleet_of(machine: Machine, at: str) -> Fingerprint:
    """The fingerprint of a fleet, without what is specific to one machine."""
    found = Fingerprint.model_validate(machine.fingerprint)
    return found.model_copy(update={"at": at, "memory_gib": 0, "logical_cores": found.threads})


def class_of(fingerprint: Fingerprint, machines: dict[str, Machine]) -> dict[str, Any] | None:
    """The class of the machines of a fingerprint; None if there is no such machine."""
    for _, each in sorted(machines.items()):
        if fleet_of(each, fingerprint.at).identity() == fingerprint.identity():
            return each.its_class
    return None


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
