"""What a command and a stage say: logs, and how they end, as exit code and one line."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator

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
from fewtune.process.early_end import ask_to_end
from fewtune.process.temporary import own_temporary_folder

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
