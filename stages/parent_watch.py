"""A stage ends with whoever started it, also where that was killed and could not say so.

``dvc repro`` runs a stage as its child, and ``fewtune run`` runs ``dvc repro``: killed with
SIGKILL, both would leave the stage measuring on, for a result that nobody takes.
"""

from __future__ import annotations

import os
import signal
import threading
import time

import psutil

# Set by whoever runs DVC: the process with which the stage is to end, besides its parent.
RUN_PID = "FEWTUNE_RUN_PID"
_EVERY_S = 0.5


def end_with_starter() -> None:
    """From now on, send SIGTERM to this process when its parent or the run is gone."""
    starters = [os.getppid()]
    run = os.environ.get(RUN_PID, "")
    if run.isdecimal():
        starters.append(int(run))
    try:
        watched = [psutil.Process(pid) for pid in starters]
    except psutil.NoSuchProcess:
        os.kill(os.getpid(), signal.SIGTERM)
        return

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
