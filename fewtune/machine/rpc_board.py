"""Boards behind TVM's RPC tracker: finding and reserving them, linking code for them.

A board runs only TVM's RPC server. Any client that reaches it, or its tracker, can run any code on
it (TVM's documentation): keep both on a private network.
"""

from __future__ import annotations

import gc
import re
import shutil
import socket
import struct
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fewtune.artifacts import MAIN, Fingerprint
from fewtune.errors import InputError, MachineError
from fewtune.machine.fingerprint import FingerprintOptions, versions
from fewtune.runtime.executable import CompiledModel
from fewtune.runtime.linking import export_library
from fewtune.runtime.target import architecture, is_foreign, resolve_target, target_json
from fewtune.runtime.tvm import relax, tvm

PREFIX = "rpc://"
# Seconds in which a tracker, or a board, has to answer.
ANSWER_S, _POLL_S = 4.0, 0.1
# Seconds in which a board that was just released has to be available again during a run.
BACK_S = 20.0
_FORM = re.compile(r"rpc://(?P<host>[^/:]+|\[[^\]]+\]):(?P<port>\d+)/(?P<key>[^/\s]+)")
_TRIPLES = {"aarch64": "aarch64-linux-gnu", "x86_64": "x86_64-linux-gnu"}


class BoardAddress(NamedTuple):
    """A tracker, and the key under which it knows the boards of one kind."""

    host: str
    port: int
    key: str

    @staticmethod
    def of(text: str) -> BoardAddress:
        """Read ``rpc://HOST:PORT/KEY``.

        Raises
        ------
        InputError
            If it has another form.
        """
        found = _FORM.fullmatch(text)
        if found is None or not 0 < int(found["port"]) < 65536:
            raise InputError(f"device {text!r} is none: give rpc://HOST:9190/KEY of a TVM tracker")
        return BoardAddress(found["host"].strip("[]"), int(found["port"]), found["key"])

    def __str__(self) -> str:
        return f"{PREFIX}{self.host}:{self.port}/{self.key}"


class Known(NamedTuple):
    """A tracker's answer for a key: its servers' hosts, the number of free ones, all keys."""

    hosts: list[str]
    free: int
    keys: list[str]


def ask_tracker(address: BoardAddress, wait_s: float = ANSWER_S) -> Known:
    """Ask a tracker for the boards of a key, one of which has to be free; never hangs.

    TVM's own request waits for ever if no server has the key, or all its servers are taken. A
    server that was just released is unknown to its tracker for a moment.

    Parameters
    ----------
    address : BoardAddress
    wait_s : float
        Seconds in which a server has to be free.

    Raises
    ------
    MachineError
        If there is no tracker, or none of its servers of the key is free.
    """
    # A virtual machine of TVM is part of a reference cycle: until collected, it holds its board.
    gc.collect()
    deadline_s = time.monotonic() + wait_s
    while not (known := _known(address)).hosts or known.free == 0:
        if time.monotonic() > deadline_s:
            raise MachineError(_missing(address, known))
        time.sleep(_POLL_S)
    return known


def _known(address: BoardAddress) -> Known:
    try:
        summary = _summary(address)
    except (OSError, ValueError, struct.error) as error:
        raise MachineError(
            f"no TVM tracker answers at {address.host}:{address.port} ({error}): start one with "
            "`python -m tvm.exec.rpc_tracker`, or mend the address"
        ) from None
    servers = [
        (server["key"].removeprefix("server:"), str(server["addr"][0]))
        for server in summary["server_info"]
    ]
    free = int(summary["queue_info"].get(address.key, {}).get("free", 0))
    return Known(
        [host for key, host in servers if key == address.key], free, sorted({k for k, _ in servers})
    )


def _missing(address: BoardAddress, known: Known) -> str:
    if known.hosts:
        return (
            f"all {len(known.hosts)} servers of {address} are taken: wait until one is free, or "
            "end who holds it"
        )
    return (
        f"the tracker at {address.host}:{address.port} has no server of key {address.key!r}; its "
        f"keys: {', '.join(known.keys) or 'none'} (a server that is taken may not show)"
    )


def _summary(address: BoardAddress) -> dict[str, Any]:
    """A tracker's summary, by its protocol: TVM's client tries to connect for minutes."""
    from tvm.rpc import base

    with socket.create_connection((address.host, address.port), ANSWER_S) as connection:
        connection.settimeout(ANSWER_S)
        connection.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
        if struct.unpack("<i", base.recvall(connection, 4))[0] != base.RPC_TRACKER_MAGIC:
            raise ValueError("what answers is no tracker")
        base.sendjson(connection, [base.TrackerCode.SUMMARY])
        code, summary = base.recvjson(connection)
        if code != base.TrackerCode.SUCCESS:
            raise ValueError(f"it answers {code}")
        return summary


def reserve(address: BoardAddress) -> Any:
    """A session of a free board of a key; the board is free again when the session ends.

    Raises
    ------
    MachineError
        If there is none, or it does not answer.
    """
    ask_tracker(address, BACK_S)
    try:
        tracker = tvm.rpc.connect_tracker(address.host, address.port)
        return tracker.request(address.key, max_retry=1)
    except (RuntimeError, OSError, tvm.error.TVMError) as fault:
        lines = str(fault).strip().splitlines()[-1:] or [type(fault).__name__]
        raise MachineError(f"a board of {address} does not answer: {lines[0]}") from None


def remote_device(session: Any, target: tvm.target.Target) -> Any:
    """The device of a session that runs code of a target."""
    kind = str(target.kind.name)
    return session.device("cpu" if kind in ("llvm", "c") else kind, 0)


def set_board_threads(session: Any, threads: int) -> None:
    """Set the number of threads of TVM's pool on a board; without a pool there is one thread."""
    try:
        session.get_function("runtime.config_threadpool")(1, threads)
    except Exception:  # noqa: BLE001 (a small runtime has no such function)
        return


def linker(target: tvm.target.Target, named: str = "") -> Callable[..., None] | None:
    """Links a library for a target; None for this machine's own compiler.

    Parameters
    ----------
    target : Target
    named : str
        A cross compiler; found on the PATH by the target's triple unless given.

    Raises
    ------
    MachineError
        If there is none.
    """
    if not named and not is_foreign(target):
        return None
    triple = _TRIPLES.get(architecture(target), f"{architecture(target)}-linux-gnu")
    names = [named] if named else [f"{triple}-gcc", f"{triple}-g++", f"{triple}-clang"]
    compiler = next((path for name in names if (path := shutil.which(name))), None)
    if compiler is None:
        raise MachineError(
            f"no compiler links for {triple} here ({', '.join(names)}): install one "
            f"(Debian: gcc-{triple.replace('_', '-')}), or name it as fingerprint.cross_compiler"
        )
    from tvm.support import cc

    return cc.cross_compiler(compiler)


def board_fingerprint(options: FingerprintOptions) -> Fingerprint:
    """Look for a board, and for a compiler that links code for it.

    Its class is its key and its target: boards of one key are taken to be alike.

    Raises
    ------
    InputError
        If the target is not given as JSON.
    MachineError
        If there is no board of the key, or no compiler links for it here.
    """
    address = BoardAddress.of(options.device)
    if not options.target.strip().startswith("{"):
        raise InputError(
            f"a board needs its target: give fingerprint.target (--target) as JSON, such as "
            f'\'{{"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72", '
            f'"num-cores": 4}}\', not {options.target!r}'
        )
    known = 1 if options.threads == "auto" else options.threads
    target = resolve_target(options.target, known, elsewhere=True)
    cores = int(target.attrs.get("num-cores", 1))
    threads = cores if options.threads == "auto" else options.threads
    linker(target, options.cross_compiler)
    ask_tracker(address)
    return Fingerprint(
        device=f"{address.key} (board behind TVM's RPC)",
        logical_cores=cores,
        memory_gib=0,
        system=f"RPC {architecture(target)}",
        target=target_json(target),
        threads=threads,
        versions=versions(),
        at=str(address),
        cross_compiler=options.cross_compiler,
    )


class BoardModel(CompiledModel):
    """A compiled model on a board.

    Parameters
    ----------
    session : RPCSession
        The board's session.
    executable : relax.VMExecutable or Path
        As built, or the path of an exported library.
    target : Target
    link : callable or None
        Links libraries for the board.
    """

    def __init__(
        self,
        session: Any,
        executable: relax.VMExecutable | Path,
        target: tvm.target.Target,
        link: Callable[..., None] | None,
    ) -> None:
        self.device = remote_device(session, target)
        with tempfile.TemporaryDirectory(prefix="fewtune-") as scratch:
            # A board's loader does not load a second library of the same name.
            path = Path(scratch) / f"model-{uuid.uuid4().hex}.so"
            if isinstance(executable, Path):
                shutil.copyfile(executable, path)
            else:
                export_library(executable, path, link)
            session.upload(str(path))
        self._function = MAIN
        self._machine = relax.VirtualMachine(session.load_module(path.name), self.device)

    def set_inputs(self, inputs: list[np.ndarray]) -> None:
        """Copy the inputs to the board; `run` uses them until the next call."""
        tensors = [tvm.runtime.tensor(value, self.device) for value in inputs]
        self._machine.set_input(self._function, *tensors)

    def run(self) -> list[tvm.runtime.Tensor]:
        """Run once; returns when the board has finished."""
        self._machine.invoke_stateful(self._function)
        return self._finished(self._machine.get_outputs(self._function))

    def times_s(self, calls: int) -> list[float]:
        """Seconds of each of some runs on the inputs that were set, by the board's clock."""
        timed = self._machine.time_evaluator("invoke_stateful", self.device, number=1, repeat=calls)
        return [float(value) for value in timed(self._function).results]
