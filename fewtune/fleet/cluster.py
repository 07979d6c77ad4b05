"""A Dask cluster as a fleet: its machines are found, grouped by class, given orders, and lost.

Dask's workers run any code that a client sends, and both sides read each other's pickles. So the
machines of a fleet have to trust each other. TLS is Dask's (`docs/devices.md`).
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import distributed

from fewtune.artifacts import Fingerprint
from fewtune.errors import InputError, MachineError
from fewtune.fleet.worker import RESOURCE, class_of, describe
from fewtune.machine.fingerprint import FingerprintOptions, detect_fingerprint

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
    return own.model_copy(update={"at": at, "memory_gib": 0, "logical_cores": own.threads})
