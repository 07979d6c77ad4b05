"""A tracker and servers of TVM's RPC on loopback, as boards to measure on."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from fewtune.errors import MachineError
from fewtune.measure.board import BoardAddress, ask_tracker
from tests.ports import free_port
from tests.waiting import until

KEY = "loopback"


def _at(port: int) -> list[str]:
    return ["--host", "127.0.0.1", "--port", str(port), "--port-end", str(port + 1)]


def start(arguments: list[str]) -> subprocess.Popen:
    """A server in a process group of its own: TVM's leave children behind at SIGTERM."""
    return subprocess.Popen(
        arguments,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _are_free(address: BoardAddress, count: int) -> bool:
    try:
        return ask_tracker(address).free == count
    except MachineError:
        return False


@contextmanager
def boards(count: int, key: str = KEY, python: str = sys.executable) -> Iterator[str]:
    """A tracker that knows ``count`` servers of a key; gives their address."""
    port = free_port()
    started = [start([sys.executable, "-m", "tvm.exec.rpc_tracker", *_at(port)])]
    address = BoardAddress("127.0.0.1", port, key)
    try:
        for _ in range(count):
            known_by = ["--tracker", f"127.0.0.1:{port}", "--key", key]
            server = [python, "-m", "tvm.exec.rpc_server", *_at(free_port()), *known_by]
            started.append(start(server))
        until(lambda: _are_free(address, count), pause_s=0.2)
        yield str(address)
    finally:
        for each in started:
            end_group(each)


def end_group(process: subprocess.Popen) -> None:
    """End a process and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
