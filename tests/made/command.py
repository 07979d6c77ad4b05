"""Commands of fewtune that stay: servers in a process group of their own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2]


def started(root: Path, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    """``fewtune`` with arguments in a folder, its output in ``command.log`` there."""
    own = ("PREFECT_", "MLFLOW_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    kept["PYTHONPATH"] = os.pathsep.join([str(PROJECT), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-m", "fewtune.pipelines.cli", *arguments],
        cwd=root,
        env={**kept, **environment},
        stdout=(root / "command.log").open("wb"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
        # Tests that run in the background may have interrupts ignored from the start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
