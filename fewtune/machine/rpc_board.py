"""Boards behind TVM's RPC tracker: found, asked, reserved, and what links code for them.

A board runs nothing but TVM's RPC server. Whoever reaches it, or its tracker, can run any code on
it (TVM's documentation): keep both on a network of your own.
"""

from __future__ import annotations

import re
import shutil
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from fewtune.errors import InputError, MachineError
from fewtune.runtime.target import architecture, is_foreign
from fewtune.runtime.tvm import tvm

PREFIX = "rpc://"
# Seconds in which a tracker, or a board, has to answer.
ANSWER_S, _POLL_S = 4.0, 0.1
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
    """What a tracker says of a key: the servers' hosts, and how many servers are free."""

    hosts: list[str]
    free: int


def ask_tracker(address: BoardAddress) -> Known:
    """Ask a tracker for the boards of a key; answers within seconds, whatever is wrong.

    TVM's own request for a key that nobody serves waits for ever, and so does one for a key whose
    servers are all taken.

    Raises
    ------
    MachineError
        If there is no tracker, or it knows no server of the key.
    """
    where = f"{address.host}:{address.port}"
    try:
        summary = _summary(address)
    except (OSError, ValueError, struct.error) as error:
        raise MachineError(
            f"no TVM tracker answers at {where} ({error}): start one with "
            "`python -m tvm.exec.rpc_tracker`, or mend the address"
        ) from None
    keys = Counter(server["key"].removeprefix("server:") for server in summary["server_info"])
    hosts = [
        str(server["addr"][0])
        for server in summary["server_info"]
        if server["key"].removeprefix("server:") == address.key
    ]
    if not hosts:
        known = ", ".join(sorted(keys)) or "none"
        raise MachineError(
            f"the tracker at {where} has no server of key {address.key!r}; its keys: {known}"
        )
    return Known(hosts, int(summary["queue_info"].get(address.key, {}).get("free", 0)))


def free_boards(address: BoardAddress) -> Known:
    """As `ask_tracker`, once a server is free: one that was let go takes a moment.

    Raises
    ------
    MachineError
        If all are taken for seconds.
    """
    deadline_s = time.monotonic() + ANSWER_S
    while (known := ask_tracker(address)).free == 0:
        if time.monotonic() > deadline_s:
            raise MachineError(
                f"all {len(known.hosts)} servers of {address} are taken: wait until one is free, "
                "or end who holds it"
            )
        time.sleep(_POLL_S)
    return known


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
    """A session of a free board of a key; it is free again when the session is let go.

    Raises
    ------
    MachineError
        If there is none, or it does not answer.
    """
    free_boards(address)
    try:
        tracker = tvm.rpc.connect_tracker(address.host, address.port)
        return tracker.request(address.key, max_retry=1)
    except (RuntimeError, OSError, tvm.error.TVMError) as fault:
        told = str(fault).strip().splitlines()[-1:] or [type(fault).__name__]
        raise MachineError(f"a board of {address} does not answer: {told[0]}") from None


def remote_device(session: Any, target: tvm.target.Target) -> Any:
    """The device of a session that runs code of a target."""
    kind = str(target.kind.name)
    return session.device("cpu" if kind in ("llvm", "c") else kind, 0)


def set_board_threads(session: Any, threads: int) -> None:
    """Let TVM's pool on a board run so many threads; without a pool it has one."""
    try:
        session.get_function("runtime.config_threadpool")(1, threads)
    except Exception:  # noqa: BLE001 (a small runtime has no such function)
        return


def linker(target: tvm.target.Target, named: str = "") -> Callable[..., None] | None:
    """What links a library for a target; None for this machine's own compiler.

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
