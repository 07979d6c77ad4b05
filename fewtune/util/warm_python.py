"""Stands for ``python`` in a run: hands ``-m MODULE ...`` to the run's warm process, which forks.

Started without site-packages and with little more than a socket, so that it costs a fiftieth of a
second. Everything it does is what a process started in its place would do: the same output, signals
and exit code. What the warm process cannot do is done by Python itself.
"""

from __future__ import annotations

# ruff: noqa: E402 (an interrupt may come while the rest loads: it ends the process, and is silent)
import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import json
import os
import socket
import sys

SOCKET, PYTHON = "FEWTUNE_WARM_SOCKET", "FEWTUNE_REAL_PYTHON"
TERMINATED = 143
_EVERY_S = 0.2


def main(arguments: list[str]) -> int:
    """Run Python's ``arguments`` in the warm process, or by Python itself."""
    parent = os.getppid()
    if "DVC_STAGE" in os.environ and os.getsid(0) != os.getpid():
        try:
            orphan = os.getsid(parent) != os.getsid(0)
        except OSError:
            orphan = True
        if orphan:
            return TERMINATED
    address = os.environ.get(SOCKET, "")
    if len(arguments) < 2 or arguments[0] != "-m" or not address:
        return _by_itself(arguments)
    warm = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    request = {
        "arguments": arguments[1:],
        "folder": os.getcwd(),  # noqa: PTH109 (pathlib takes as long to load as all else)
        "environment": dict(os.environ),
        "group": os.getpgrp(),
    }
    content = json.dumps(request).encode()
    try:
        warm.connect(address)
        socket.send_fds(warm, [len(content).to_bytes(8, "big")], [0, 1, 2])
        warm.sendall(content)
        answer = warm.recv(1)
    except OSError:
        return _by_itself(arguments)
    if not answer:
        return _by_itself(arguments)

    def forward(number: int, _: object) -> None:
        try:  # noqa: SIM105 (contextlib takes as long to load as all else)
            warm.sendall(bytes([number]))
        except OSError:
            pass  # it is gone, and what it forked with it

    signal.signal(signal.SIGTERM, forward)
    # In a group of its own, what is sent to this one does not reach the other.
    own = answer == b"g"
    signal.signal(signal.SIGINT, forward if own else signal.SIG_IGN)
    warm.settimeout(_EVERY_S)
    reply = b""
    while len(reply) < 4:
        try:
            chunk = warm.recv(4)
        except TimeoutError:
            if os.getppid() != parent:
                return TERMINATED
            continue
        except InterruptedError:
            continue
        except OSError:
            return 1
        if not chunk:
            return 1
        reply += chunk
    code = int.from_bytes(reply, "big", signed=True)
    if code < 0:
        # Ended by a signal, as the waiting process has to see.
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    return code


def _by_itself(arguments: list[str]) -> int:
    python = os.environ[PYTHON]
    os.execv(python, [python, *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
