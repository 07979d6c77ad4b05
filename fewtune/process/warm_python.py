"""Replaces ``python`` in a run: sends ``-m MODULE ...`` to the run's warm process, which forks.

It starts without site-packages and imports little more than sockets, so it costs a fiftieth of a
second. It behaves like the process in whose place it is started: the same output, signals and exit
code. Python itself does what the warm process cannot do.
"""

from __future__ import annotations

import signal

# An interrupt while the rest loads ends the process silently.
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import json
import os
import select
import socket
import sys

TERMINATED = 143
_EVERY_S = 0.2


def main(address: str, arguments: list[str]) -> int:
    """Run Python's ``arguments`` in the warm process at an address, or by Python itself."""
    parent = os.getppid()
    if is_orphan(parent):
        return TERMINATED
    if len(arguments) < 2 or arguments[0] != "-m":
        return _by_itself(arguments)
    warm = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    request = {
        "arguments": arguments[1:],
        "folder": os.getcwd(),  # noqa: PTH109 (pathlib takes as long to load as all else)
        "environment": dict(os.environ),
    }
    content = json.dumps(request).encode()
    try:
        warm.connect(address)
        socket.send_fds(warm, [len(content).to_bytes(8, "big")], [0, 1, 2])
        warm.sendall(content)
        answer = warm.recv(1)
    except OSError:
        answer = b""
    if not answer:
        return _by_itself(arguments)

    def forward(number: int, _: object) -> None:
        try:  # noqa: SIM105 (contextlib takes as long to load as all else)
            warm.sendall(bytes([number]))
        except OSError:
            pass  # it is gone, and what it forked with it

    # The fork has a process group of its own: signals to this group do not reach it.
    signal.signal(signal.SIGTERM, forward)
    signal.signal(signal.SIGINT, forward)
    code = _awaited(warm, parent)
    if code < 0:
        # The fork was ended by a signal: the waiting process has to see the same.
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    return code


def is_orphan(parent: int) -> bool:
    """Whether DVC started this process for a run that has ended since."""
    if "DVC_STAGE" not in os.environ or os.getsid(0) == os.getpid():
        return False
    try:
        return os.getsid(parent) != os.getsid(0)
    except OSError:
        return True


def _awaited(warm: socket.socket, parent: int) -> int:
    """The fork's exit code; that of a terminated process once the parent is gone."""
    while not select.select([warm], [], [], _EVERY_S)[0]:
        if os.getppid() != parent:
            return TERMINATED
    try:
        reply = warm.recv(4)
    except OSError:
        return 1
    return int.from_bytes(reply, "big", signed=True) if reply else 1


def _by_itself(arguments: list[str]) -> int:
    os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
