"""Processes of tests: Python that runs a text, and commands of fewtune that stay."""

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


def python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a text in a Python of its own, which imports what this one does."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
