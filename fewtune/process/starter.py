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

from fewtune.process.warm_python import is_orphan

# Set by the caller of DVC: the process with which the stage is to end, besides its parent.
RUN_PID = "FEWTUNE_RUN_PID"
_EVERY_S = 0.2


def end_with_starter() -> None:
    """From now on, send SIGTERM to this process when its parent or the run is gone."""
    parent, run = os.getppid(), os.environ.get(RUN_PID, "")
    watched: set[psutil.Process] = set()
    with contextlib.suppress(psutil.NoSuchProcess):
        watched = {psutil.Process(pid) for pid in (parent, int(run or parent))}
    if not watched or is_orphan(parent):
        os.kill(os.getpid(), signal.SIGTERM)

    def watch() -> None:
        while all(map(_lives, watched)):
            time.sleep(_EVERY_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="starter", daemon=True).start()


def _lives(process: psutil.Process) -> bool:
    # A number may be another process's by now; psutil knows processes by their start.
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
