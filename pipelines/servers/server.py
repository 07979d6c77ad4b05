"""The one way to start a server: for this user alone, and only as long as its command lives.

It listens on 127.0.0.1, where any user of the machine and any web page may knock, so it asks for a
secret. It ends with the process that started it, however that ends, and with it go its temporary
files, which lie in the command's own folder.
"""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from fewtune.errors import InputError, MachineError
from fewtune.pipelines.servers import with_parent
from fewtune.process.warm import end_group
from fewtune.stages.paths import Places

LOCALHOST = "127.0.0.1"
# The secret's name in the server's environment: arguments are there for everybody to read.
SECRET = "FEWTUNE_SERVER_SECRET"
_STARTUP_S, _END_S = 180, 0.5


def new_secret() -> str:
    """A user's name and password that nobody has yet, as ``name:password``."""
    return f"fewtune:{secrets.token_urlsafe(32)}"


def basic(secret: str) -> str:
    """The header by which a client shows that it knows ``secret``."""
    return f"Basic {base64.b64encode(secret.encode()).decode()}"


def check_port(port: int) -> None:
    """Refuse a port that is none, or taken.

    Raises
    ------
    InputError, MachineError
    """
    if not 0 < port < 65536:
        raise InputError(f"port {port} is none: give 1 to 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOCALHOST, port))
        except OSError as error:
            reason = error.strerror or str(error)
            raise MachineError(
                f"port {port} cannot be used ({reason.lower()}): give another with --port"
            ) from None


@contextlib.contextmanager
def server(
    root: Path, name: str, command: Sequence[str], page: str, health: str, secret: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A server of the checkout at ``root`` while the block runs.

    Parameters
    ----------
    root : Path
    name : str
        Such as ``mlflow``: names its log and the file with the secret.
    command : sequence of str
        The module that serves, with its arguments.
    page : str
        Its address for people.
    health : str
        An address that answers when it is up.
    secret : str
        What it asks for.

    Raises
    ------
    MachineError
        If it does not come up.
    """
    log = Places(root).scratch / "logs" / f"{name}-server.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", with_parent.__name__, str(os.getpid()), *command],
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            env={**os.environ, SECRET: secret},
            start_new_session=True,
        )
    try:
        file = _handed_over(root, name, secret)
        print(f"{name} starts at {page}, until Ctrl-C; it asks for what stands in {file}")
        sys.stdout.flush()
        _wait_for(health, secret, process, log)
        yield process
    finally:
        end_group(process, signal.SIGTERM, _END_S)


def _handed_over(root: Path, name: str, secret: str) -> Path:
    """A new file with the secret, for this user's page and clients."""
    file = Places(root).scratch / f"{name}-auth"
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(f"{secret}\n")
    return file


def _wait_for(address: str, secret: str, process: subprocess.Popen[bytes], log: Path) -> None:
    request = urllib.request.Request(address, headers={"Authorization": basic(secret)})
    deadline = time.monotonic() + _STARTUP_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(request, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise MachineError(f"the server did not come up: see {log}")
