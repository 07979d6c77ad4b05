"""A worker process: ``python -m fewtune.workers MODULE:CLASS``, which a `WorkerHandle` starts.

The protocol is a sequence of requests and replies over a socket that only the parent holds, the
process's standard input; the worker ends when the socket closes, so it never outlives its parent.
"""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Connection
from pkgutil import resolve_name

from fewtune.process.child_python import SHOW_STDERR, end_by_interrupts

if __name__ == "__main__":
    # Before anything that takes time to load.
    end_by_interrupts()

from fewtune.errors import DISKS_FAULT, disk_line
from fewtune.process.contexts import without_gc


def serve(connection: Connection, kind: str) -> None:
    """Answer requests until the parent closes the socket; the first one has the settings."""
    with without_gc(for_good=True):
        made = resolve_name(kind)
    worker = made(*connection.recv())
    worker.get_ready()
    connection.send(("ready", os.getpid()))
    while True:
        try:
            method, arguments, named = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        try:
            reply = ("ok", method(worker, *arguments, **named))
        except MemoryError:
            reply = ("failed", "out of memory")
        except Exception as fault:  # noqa: BLE001 (any exception is the candidate's failure)
            if isinstance(fault, OSError) and fault.errno in DISKS_FAULT:
                # A full disk is no candidate's fault: it must not be noted as failed.
                reply = ("machine", disk_line(fault))
            else:
                text = str(fault).strip() or type(fault).__name__
                reply = ("failed", text[-2000:])
        try:
            connection.send(reply)
        except BrokenPipeError:
            return


def silence() -> None:
    """Keep the output of libraries off the terminal's live view."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if os.environ.get(SHOW_STDERR) is None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


if __name__ == "__main__":
    silence()
    serve(Connection(os.dup(0)), sys.argv[1])
