"""Workers forked from a fork server: they build and measure, and are replaced at once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fewtune.measure.measurer import module_specs
from fewtune.runtime.tvm import tvm
from fewtune.schedule.defaults.default import default_schedule
from tests import tuned_tiny

# In a process that begins with the fork server, as the tuning process does: pytest has threads.
SCRIPT = """
import json, os, signal, sys, time
from fewtune.workers.fork_server import ForkServer
import fewtune.runtime.tvm

fork_server = ForkServer()
from fewtune.errors import MachineError
from fewtune.workers.pool import WorkerPool
from fewtune.timing.timer import Race

given = json.loads(sys.stdin.read())
told = {}
with WorkerPool(given["target"], 2, 1, fork_server=fork_server) as pool:
    first, second = pool.build([given["module"]] * 2)
    handle = pool.handles[first.worker]
    measured = handle.call("measure", first.number, given["specs"], Race(None), timeout_s=20)
    told["run_s"] = measured.run_s
    before = handle.pid
    os.kill(before, signal.SIGKILL)
    (lost,) = pool.build([given["module"]])
    told["lost"] = str(lost)
    began = time.monotonic()
    (again,) = pool.build([given["module"]])
    told["again"] = again.number > second.number and handle.pid != before
    told["stopped"] = handle.pid
told["alive"] = os.path.exists(f"/proc/{told['stopped']}")
pool = WorkerPool(given["target"], 2, 1, fork_server=fork_server)
os.kill(fork_server.pid, signal.SIGKILL)
# What it forked can be ended all the same, though nobody can wait for it.
pool.close()
try:
    WorkerPool(given["target"], 2, 1, fork_server=fork_server)
except MachineError as error:
    told["error"] = str(error)
print(json.dumps(told))
"""


# Dies with an answer unread: the connection is reset then, not closed.
KILLED = """
import os, select, signal, socket
from fewtune.workers.fork_server import ForkServer

fork_server = ForkServer()
ours, theirs = socket.socketpair()
socket.send_fds(fork_server.control, [b'{"spawn": {}}'], [theirs.fileno()])
select.select([fork_server.control], [], [], 60)
print("answered", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_fork_server_ends_silently_with_a_killed_tuning_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    # The streams are read until the fork server has ended, too.
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGKILL, "answered\n", "")


@pytest.mark.slow
def test_forked_workers_build_measure_die_and_are_replaced() -> None:
    task = tuned_tiny.convolutions()["c"]
    scheduled = default_schedule(task.mod, tuned_tiny.target())
    given = {
        "target": tuned_tiny.fingerprint().target,
        "module": tvm.ir.save_json(scheduled.mod),
        "specs": module_specs(task.mod),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(given),
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert all(value > 0 for value in told["run_s"])
    assert told["again"]
    assert not told["alive"]
    assert "run again to resume" in told["error"]
