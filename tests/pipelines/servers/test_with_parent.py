"""What a command starts ends with it, also where it is killed."""

import signal
import subprocess
import sys

import psutil

from fewtune.pipelines.servers import with_parent
from tests.waiting import until

_STARTER = """
import os, subprocess, sys, time

module = ["-m", "fewtune.pipelines.servers.with_parent", str(os.getpid())]
child = subprocess.Popen([sys.executable, *module, "http.server", "0", "--bind", "127.0.0.1"],
                         stdout=subprocess.DEVNULL, start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_server_ends_with_the_command_that_was_killed():
    starter = subprocess.Popen([sys.executable, "-c", _STARTER], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    server = psutil.Process(int(starter.stdout.readline()))
    try:
        # It serves, under the arguments that it was given.
        until(lambda: server.net_connections())
        assert server.cmdline()[-4:] == ["http.server", "0", "--bind", "127.0.0.1"]
        starter.send_signal(signal.SIGKILL)
        starter.wait()
        until(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE)
    finally:
        starter.kill()


def test_one_whose_starter_is_gone_does_not_begin():
    given = [with_parent.__name__, "1", "json.tool", "--help"]
    command = [sys.executable, "-m", *given]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == ""
