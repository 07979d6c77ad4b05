"""A Dask scheduler and workers of this machine, as `fewtune worker` starts them."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import distributed

from fewtune.fleet.worker import RESOURCE, command
from tests.ports import free_port
from tests.rpc_boards import end_group, start
from tests.waiting import until

_START_S = 90.0


def worker_pids(at: str) -> dict[str, int]:
    """The process of each Dask worker that has a device, by address."""
    with distributed.Client(at, set_as_default=False) as client:
        workers = client.scheduler_info(n_workers=-1)["workers"]
        able = [a for a, it in workers.items() if it["resources"].get(RESOURCE)]
        found = client.run(_own_pid, workers=able) if able else {}
    return {address: int(pid) for address, pid in found.items()}


def _own_pid() -> int:
    return os.getpid()


def _has_workers(at: str, count: int) -> bool:
    try:
        return len(worker_pids(at)) == count
    except OSError:
        return False


@contextmanager
def cluster(count: int) -> Iterator[str]:
    """A scheduler with so many workers; gives its address."""
    port = free_port()
    at = f"tcp://127.0.0.1:{port}"
    scheduler = ["--host", "tcp://127.0.0.1", "--port", str(port), "--no-dashboard"]
    started = [start([sys.executable, "-m", "distributed.cli.dask_scheduler", *scheduler])]
    try:
        started += [start(command(at, ["--death-timeout", "90"])) for _ in range(count)]
        until(lambda: _has_workers(at, count), _START_S, pause_s=0.3)
        yield at
    finally:
        for each in started[::-1]:
            end_group(each)
