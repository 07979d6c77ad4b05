"""A command with a limit of seconds: all of its processes end, and its output is kept."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

_ENDING_S = 30
# No signal has this number.
_TIMED_OUT = -1000


def run_limited(
    command: list[str], cwd: Path, limit_s: float, environment: dict[str, str] | None = None
) -> tuple[int, list[str]]:
    """Exit code and lines of output, with all its children ended.

    The code is negative where a signal ended it: of its own, or `_TIMED_OUT` at its limit. Python
    finds what lies in ``cwd`` first, unless another environment is given.
    """
    environment = environment or {**os.environ, "PYTHONPATH": str(cwd)}
    with subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            text, _ = process.communicate(timeout=limit_s)
            return process.returncode, text.splitlines()
        except BaseException as error:
            _end(process)
            if isinstance(error, subprocess.TimeoutExpired):
                return _TIMED_OUT, []
            raise


def ended(code: int, limit_s: float) -> str:
    """Why a command ended that a signal ended."""
    if code == _TIMED_OUT:
        return f"ended after its limit of {limit_s:.0f} s"
    return f"crashed: {signal.Signals(-code).name}"


def _end(process: subprocess.Popen[str]) -> None:
    """End a process and its children: interrupted first, so that it gives back what it holds."""
    for kind in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(process.pid, kind)
            process.communicate(timeout=_ENDING_S)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
        return


def reason(lines: list[str]) -> str:
    """The last lines of output: of `fewtune`, its own ones."""
    own = [line.removeprefix("fewtune: ") for line in lines if line.startswith("fewtune: ")]
    shown = own or [line for line in lines if line.strip()]
    return " ".join(" ".join(shown[-2:]).split())[:600] or "it printed nothing"
