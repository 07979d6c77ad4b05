"""The warm process: it has TVM and more loaded, and is forked instead of starting Python.

A new interpreter takes a second or two of a core to load TVM, and a model is imported, tuned,
shared and compiled in processes of their own. The warm process only imports: a fork of a process
that has run a kernel, or started a thread, hangs. It loads modules while the first processes run,
listens on a socket in a private folder, and ends with the process that started it, as do all its
forks.

`child_python` names the program that starts a process: `warm_python` if
there is a warm process. Without it Python runs the same modules, and they give the same files.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from fewtune.process import warm_python
from fewtune.process.child_python import CHILD_PYTHON
from fewtune.process.contexts import SharedContext
from fewtune.util.nvidia_driver import has_nvidia_driver

# Seconds that it has to end by itself.
_PATIENCE_S = 3.0
# A socket's path has at most 107 bytes; its own folder's name and its own take 21.
_LONGEST_FOLDER = 85

# The environment variable that names a warm process exists once in each process.
_WARM = SharedContext()


@contextmanager
def warm_process(
    modules: Sequence[str], folder: Path | None = None, *, is_for_cpu: bool = False
) -> Iterator[None]:
    """Keep a warm process while the block runs; one is enough, an ancestor's too.

    Parameters
    ----------
    modules : sequence of str
        What it loads, in this order; ``MODULE:FUNCTION`` calls the function, too.
    folder : Path, optional
        Where it starts, the current one unless given.
    is_for_cpu : bool
        Whether no process that it forks uses a GPU.
    """

    def made() -> AbstractContextManager[None]:
        # With an NVIDIA GPU there is none: its forks could not use the GPU.
        is_useless = has_nvidia_driver() and not is_for_cpu
        if CHILD_PYTHON in os.environ or is_useless:
            return contextlib.nullcontext()
        return _started(modules, folder or Path.cwd())

    with _WARM.entered(made):
        yield


@contextmanager
def _started(modules: Sequence[str], where: Path) -> Iterator[None]:
    # None is the usual folder for temporary files.
    folder = None if len(tempfile.gettempdir()) <= _LONGEST_FOLDER else "/tmp"
    with (
        tempfile.TemporaryDirectory(prefix="warm.", dir=folder, ignore_cleanup_errors=True) as name,
        _serving(Path(name), modules, where) as address,
    ):
        script = Path(name) / "python"
        words = [sys.executable, "-I", "-S", warm_python.__file__, address]
        script.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        script.chmod(0o700)
        os.environ[CHILD_PYTHON] = str(script)
        try:
            yield
        finally:
            os.environ.pop(CHILD_PYTHON, None)


@contextmanager
def _serving(folder: Path, modules: Sequence[str], where: Path) -> Iterator[str]:
    """Keep the warm process, which listens in a folder; gives its address."""
    address = str(folder / "socket")
    ours, theirs = socket.socketpair()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, theirs:
        listener.bind(address)
        listener.listen(64)
        command = [sys.executable, "-m", "fewtune.process.warm_server"]
        descriptors = [listener.fileno(), theirs.fileno()]
        process = subprocess.Popen(
            [*command, *map(str, descriptors), str(folder), *modules],
            cwd=where,
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        yield address
    finally:
        # It ends, with all its forks, when this end is closed, also if this process is killed. The
        # signal ends it also during an import.
        ours.close()
        end_group(process, signal.SIGHUP, _PATIENCE_S)


def end_group(process: subprocess.Popen[bytes], sent: signal.Signals, patience_s: float) -> None:
    """Let a process that leads its group end by a signal; then end what is left of the group."""
    process.send_signal(sent)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
