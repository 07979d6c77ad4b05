"""What a command and a stage say: logs, and how they end, as exit code and one line."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fewtune.errors import (
    INTERRUPTED,
    MACHINES_FAULT,
    TERMINATED,
    FewtuneError,
    MachineError,
    Terminated,
    disk_line,
    one_line,
)
from fewtune.process.temporary import own_temporary_folder
from fewtune.process.warm_python import is_orphan

# Names a file that sessions make when they measure; it has content once they are asked to end.
_END_FILE = "FEWTUNE_END_FILE"
# The files of this process's own blocks: what it started does not ask.
_asking: list[Path] = []


@contextlib.contextmanager
def ending_early(file: Path) -> Iterator[None]:
    """Let an interrupt of this process ask sessions to end while the block runs."""
    os.environ[_END_FILE] = str(file)
    _asking.append(file)
    try:
        yield
    finally:
        _asking.remove(file)
        os.environ.pop(_END_FILE, None)


def listen() -> None:
    """Say that this session measures, and ends when it is asked to."""
    if named := os.environ.get(_END_FILE):
        Path(named).touch()


def ask_to_end() -> bool:
    """Ask sessions to end with what they have; False if none measures, or they were asked."""
    if not _asking or not _asking[-1].exists() or is_asked_to_end():
        return False
    _asking[-1].write_text("end")
    print("fewtune: ending with the best so far; interrupt again to end at once", file=sys.stderr)
    return True


def is_asked_to_end() -> bool:
    """Whether sessions are to end with what they have."""
    file = Path(os.environ.get(_END_FILE) or os.devnull)
    return file.is_file() and file.stat().st_size > 0


# If it is set, stages print what the library logs.
VERBOSE = "FEWTUNE_VERBOSE"


def show_logs() -> None:
    """Print what the library logs."""
    logging.basicConfig(format="%(name)s: %(message)s")
    logging.getLogger("fewtune").setLevel(logging.DEBUG)


def exit_code(work: Callable[[], int], name: str = "fewtune") -> int:
    """Do ``work`` with temporary files of its own; print what ends it, and return the exit code.

    Any other exception than those of `fewtune.errors` and the system's is a fault of this software
    and is raised.
    """
    code, line = 1, ""
    with _noted_signals() as seen:
        try:
            with own_temporary_folder():
                code = work()
        except FewtuneError as error:
            code, line = error.exit_code, one_line(error)
        except KeyboardInterrupt as ended:
            code = TERMINATED if isinstance(ended, Terminated) else INTERRUPTED
        except BrokenPipeError:
            close_output()
            return 0
        except Exception as error:
            if isinstance(error, OSError) and (error.errno in MACHINES_FAULT or error.filename):
                code, line = MachineError.exit_code, one_line(disk_line(error))
            elif not seen:
                raise
        if seen and code:
            # Whatever a library made of it: onnxruntime turns an interrupt into an ImportError.
            code = TERMINATED if signal.SIGTERM in seen else INTERRUPTED
    if code in (INTERRUPTED, TERMINATED):
        line = f"{'ended' if code == TERMINATED else 'interrupted'}; the same command goes on"
    if line:
        print(f"{name}: {line}", file=sys.stderr, flush=True)
    return code


@contextlib.contextmanager
def _noted_signals() -> Iterator[list[int]]:
    """Raise KeyboardInterrupt for SIGINT and SIGTERM, and note them."""
    seen: list[int] = []

    def note(number: int, _: object) -> None:
        if number == signal.SIGINT and ask_to_end():
            return
        seen.append(number)
        if number == signal.SIGTERM:
            # All processes that were started end on the way out.
            signal.signal(number, signal.SIG_IGN)
            raise Terminated
        raise KeyboardInterrupt

    # A command that was started in the background ignores interrupts.
    taken = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        taken.append(signal.SIGINT)
    before = {each: signal.signal(each, note) for each in taken}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def close_output() -> None:
    """Stop writing: the reader, such as `head`, has ended, and Python would print an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# Set by the caller of DVC: the process with which the stage is to end, besides its parent.
RUN_PID = "FEWTUNE_RUN_PID"


def end_with_starter() -> None:
    """From now on, send SIGTERM to this process when its parent or the run is gone.

    ``dvc repro`` runs a stage as its child, and ``fewtune run`` runs ``dvc repro``: killed with
    SIGKILL, both would leave the stage measuring on, for a result that nobody takes.
    """
    parent, run = os.getppid(), os.environ.get(RUN_PID, "")
    watched: list[Any] = []
    with contextlib.suppress(ProcessLookupError):
        watched = [os.pidfd_open(pid) for pid in {parent, int(run or parent)}]
    if not watched or is_orphan(parent):
        os.kill(os.getpid(), signal.SIGTERM)

    def watch() -> None:
        # Each becomes readable when its process ends.
        select.select(watched, [], [])
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="starter", daemon=True).start()
