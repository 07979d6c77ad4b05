"""What benchmarks share: measuring alone, errors of one line, commands with a limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fewtune.errors import FewtuneError
from fewtune.machine.device_lock import device_lock
from fewtune.util.files import write_text

# Begins the part of a page that no benchmark makes.
BY_HAND = "<!-- By hand from here on. -->"
_ENDING_S = 30
# No signal has this number.
_TIMED_OUT = -1000


@contextmanager
def alone(name: str) -> Iterator[None]:
    """Hold this machine's processor, waiting while another run measures on it.

    Parameters
    ----------
    name : str
        Of the benchmark, as it is shown to others that wait for it.

    Raises
    ------
    SystemExit
        As `one_line_errors`.
    """
    with one_line_errors(name), device_lock("cpu", f"benchmark {name}"):
        yield


@contextmanager
def one_line_errors(name: str) -> Iterator[None]:
    """End a benchmark in one line on an error that its user can mend.

    Parameters
    ----------
    name : str
        Of the benchmark.

    Raises
    ------
    SystemExit
        With that error's exit code.
    """
    try:
        yield
    except FewtuneError as error:
        print(f"{name}: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        sys.exit(error.exit_code)


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


def why_ended(code: int, lines: list[str], limit_s: float) -> str:
    """Why a command ended with another code than 0."""
    if code == _TIMED_OUT:
        return f"ended after its limit of {limit_s:.0f} s"
    return reason(lines) if code > 0 else f"crashed: {signal.Signals(-code).name}"


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


def write_page(path: Path, made: str) -> None:
    """Write a page; what stands in it below `BY_HAND` stays."""
    _, mark, kept = (path.read_text() if path.is_file() else "").partition(BY_HAND)
    write_text(path, f"{made}\n{mark}{kept}" if mark else made)
