"""A stage ends with the process that started it, also where that was killed.

``dvc repro`` runs a stage as its child, and ``fewtune run`` runs ``dvc repro``: killed with
SIGKILL, both would leave the stage measuring on, for a result that nobody takes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

import psutil

# Set by the caller of DVC: the process with which the stage is to end, besides its parent.
RUN_PID = "FEWTUNE_RUN_PID"
# DVC says so to the stages that it runs.
_BY_DVC = "DVC_STAGE"
_EVERY_S = 0.2


def end_with_starter() -> None:
    """From now on, send SIGTERM to this process when its parent or the run is gone."""
    parent, run = os.getppid(), os.environ.get(RUN_PID, "")
    watched = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        watched = {psutil.Process(pid) for pid in (parent, int(run or parent))}
    if not watched or _is_orphan():
        os.kill(os.getpid(), signal.SIGTERM)

    def watch() -> None:
        while all(map(_lives, watched)):
            time.sleep(_EVERY_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="starter", daemon=True).start()


def _is_orphan() -> bool:
    """Whether DVC, which runs its stages in its own session, was killed before this began.

    An orphan's new parent is the machine's first process, or another one outside of the session.
    """
    if _BY_DVC not in os.environ or os.getsid(0) == os.getpid():
        return False
    try:
        return os.getsid(os.getppid()) != os.getsid(0)
    except (ProcessLookupError, PermissionError):
        return True


def _lives(process: psutil.Process) -> bool:
    # A number may be another process's by now; psutil knows processes by their start.
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
