"""One process that has TVM, DVC and the stages loaded, and forks each stage of a run.

An interpreter that loads TVM and DVC anew takes two to four seconds of a core, eleven times in a
run of one model. The warm process only imports: a fork of one that has run a kernel, or started a
thread, hangs. It loads what stages need while the first of them run, listens on a socket in a
private folder, and ends with the run, as do all that it has forked.

`dvc.yaml` knows nothing of it: the run's PATH begins with a folder whose ``python`` is
`pipelines.runs.warm_python`. Without it the same commands start Python, and give the same files.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fewtune.util.child_python import CHILD_PYTHON
from pipelines.runs import warm_python

_PATIENCE_S = 3.0
# A socket's path has at most 107 bytes; its own folder's name and its own take 21.
_LONGEST_FOLDER = 85


@contextmanager
def warm_process(root: Path) -> Iterator[None]:
    """Have a warm process for the stages at ``root`` while the block runs; one is enough."""
    if warm_python.SOCKET in os.environ:
        yield
        return
    folder = Path(tempfile.mkdtemp(prefix="warm.", dir=_short_folder()))
    before = dict(os.environ)
    try:
        script = folder / "python"
        client = Path(warm_python.__file__)
        words = [sys.executable, "-I", "-S", str(client)]
        script.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        script.chmod(0o700)
        address = folder / "socket"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(address))
            listener.listen(64)
            ours, theirs = socket.socketpair()
            with theirs:
                command = [sys.executable, "-m", "pipelines.runs.warm_server"]
                process = subprocess.Popen(
                    [*command, str(listener.fileno()), str(theirs.fileno()), str(folder)],
                    cwd=root,
                    pass_fds=[listener.fileno(), theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
        os.environ[warm_python.SOCKET] = str(address)
        os.environ[warm_python.PYTHON] = sys.executable
        os.environ[CHILD_PYTHON] = str(script)
        try:
            yield
        finally:
            # It ends, with all it forked, when this end is closed: also if we are killed.
            ours.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    finally:
        for name in (warm_python.SOCKET, warm_python.PYTHON, CHILD_PYTHON):
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]
        shutil.rmtree(folder, ignore_errors=True)


def _short_folder() -> str | None:
    """Where a socket's path is no longer than the system takes; None for the usual place."""
    return None if len(tempfile.gettempdir()) <= _LONGEST_FOLDER else "/tmp"
