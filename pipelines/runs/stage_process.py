"""One `dvc repro` of one stage in a process of its own, its output shown, kept and read."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fewtune.errors import FAULT, INTERRUPTED, TERMINATED, MachineError, printable
from fewtune.pipelines.dvc_repo.dag import DvcBusyError
from fewtune.pipelines.dvc_repo.mend import kept_lock_file, mend_rwlock
from fewtune.process.child_python import child_python, ending
from fewtune.process.ending import RUN_PID
from fewtune.tvm_compat.noise import NOISE

POLL_S = 2.0
# An interrupted stage has so long to clean up; then it is killed. Its journal is always whole.
GRACE_S = 2.5

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_EXITED = re.compile(r"exited with (-?\d+)")
# A shell adds this to the number of the signal that ended its command.
_BY_SIGNAL = 128
_BUSY = ("Unable to acquire lock", "is busy, it is being blocked by")
# DVC's messages for a full or read-only disk: those of files, of its databases, and of copies.
_DISK = re.compile(
    r"No space left on device|Disk quota exceeded|Read-only file system|Permission denied|"
    r"database or disk is full|disk I/O error|readonly database|unable to open database file|"
    r"No possible cache link types"
)
_UNCHANGED = ("didn't change, skipping", "is cached - skipping run")
# What DVC prints after every stage about git.
_NOISE = (
    "To track the changes with git, run:",
    "git add ",
    "To enable auto staging, run:",
    "dvc config core.autostage true",
    "Use `dvc push` to send your updates",
    "Generating lock file",
    "Updating lock file",
    "Data and pipelines are up to date.",
    "Having any troubles?",
)
# Logs of one-shot's tuning: nothing was measured.
_EMPTY_LOG = re.compile(r"/database_\w+\.json' is empty\.$")


@dataclass(frozen=True)
class Ending:
    """How a stage's process ended.

    Attributes
    ----------
    exit_code : int
        The stage's own where DVC passes it on, else DVC's.
    error : str
        Its one line about what went wrong; empty if it ended well.
    unchanged : bool
        Whether DVC had nothing to do, or took the outputs from its cache.
    skipped : str
        Why it was not run, if it was not.
    """

    exit_code: int
    error: str = ""
    unchanged: bool = False
    skipped: str = ""


def run_stage(
    root: Path,
    name: str,
    log: Path,
    say: Callable[[str], None],
    force: bool = False,
) -> Ending:
    """Bring one stage up to date, without those that it needs; ``log`` gets all its output.

    ``say`` gets each line.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    mend_rwlock(root)
    command = [child_python(), "-m", "dvc", "repro", "-s", *(["-f"] if force else []), name]
    # If there is a warm process, `python` is its client, here and in stages.
    scripts = str(Path(child_python()).parent)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)]),
        "PYTHONUNBUFFERED": "1",
        RUN_PID: str(os.getpid()),
    }
    with kept_lock_file(root), log.open("wb", buffering=0) as kept:
        process = subprocess.Popen(
            command,
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # Its own group: an interrupt reaches the stage and its workers through us, once.
            start_new_session=True,
        )
        lines = Lines(kept, say)
        try:
            _pump(process, lines)
        except BaseException:
            _stop(process)
            raise
        return lines.ending(process.returncode, name, log)


class Lines:
    """Keeps and shows lines, and reads from them how a stage ended."""

    def __init__(self, kept: IO[bytes], say: Callable[[str], None]) -> None:
        self._kept, self._say = kept, say
        self._error = self._last = ""
        self._exit_code: int | None = None
        self._unchanged = self._busy = False

    def take(self, raw: bytes) -> None:
        """Take a line."""
        text = _ESCAPES.sub("", raw.decode(errors="replace").rstrip("\r")).rpartition("\r")[2]
        text = printable(text.rstrip().expandtabs())
        noise = text.lstrip().startswith(_NOISE) or NOISE.search(text) or _EMPTY_LOG.search(text)
        if not text or noise:
            return
        try:
            self._kept.write(text.encode() + b"\n")
        except OSError as error:
            # The error itself names no file.
            raise OSError(error.errno, error.strerror, str(self._kept.name)) from None
        if text.startswith("fewtune: "):
            self._error = text
        exited = _EXITED.search(text)
        if exited:
            self._exit_code = int(exited.group(1))
        self._unchanged |= any(phrase in text for phrase in _UNCHANGED)
        self._busy |= any(phrase in text for phrase in _BUSY)
        # DVC's line only repeats the command: a traceback's last line says more.
        if "failed to run: " not in text:
            self._last = text
        self._say(text)

    def ending(self, exit_code: int, name: str, log: Path) -> Ending:
        """How the stage ended, by its lines."""
        if exit_code == 0:
            return Ending(0, unchanged=self._unchanged)
        if self._error:
            # The stage's line names the stage without its model; the caller prints the whole name.
            prefix = f"fewtune: {name.split('@')[0]}: "
            message = self._error.removeprefix(prefix).removeprefix("fewtune: ")
        elif self._busy:
            raise DvcBusyError("another DVC process is at work here")
        elif _DISK.search(self._last):
            return Ending(
                MachineError.exit_code,
                f"the disk does not take what was made ({self._last[-300:]}): free some "
                "space, or make the folder writable, and run again; what was measured is kept",
            )
        elif self._exit_code is not None and not 0 <= self._exit_code <= _BY_SIGNAL:
            return Ending(*_killed(self._exit_code))
        else:
            message = f"{self._last or f'ended with code {exit_code}'} (see {log})"
        return Ending(self._exit_code or exit_code, message)


def _killed(code: int) -> tuple[int, str]:
    """Exit code and error of a stage that a signal ended."""
    number = -code if code < 0 else code - _BY_SIGNAL
    if number not in set(signal.Signals):
        return FAULT, f"ended with code {code}"
    known: dict[int, int] = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}
    known[signal.SIGKILL] = MachineError.exit_code
    return known.get(number, FAULT), f"{ending(-number)}; the same command goes on"


def _pump(process: subprocess.Popen[bytes], lines: Lines) -> None:
    """Pass output on until the process has ended and its stream is empty."""
    assert process.stdout is not None
    with process.stdout as stream:
        rest = b""
        while True:
            ended = process.poll() is not None
            if not select.select([stream], [], [], 0.2 if ended else POLL_S)[0]:
                if ended:
                    # A worker that outlives the stage may keep the stream open.
                    break
                continue
            chunk = os.read(stream.fileno(), 65536)
            if not chunk:
                break
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                lines.take(line)
        lines.take(rest)
    process.wait()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the stage and all its workers: first by SIGINT, so that it can clean up."""
    for sent, patience_s in ((signal.SIGINT, GRACE_S), (signal.SIGTERM, 0.5), (signal.SIGKILL, 5)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sent)
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            continue
        break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
