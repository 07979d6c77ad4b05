"""Work in a fork of this process, which has all loaded: how it ends, and what it writes."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fewtune.errors import FewtuneError, one_line


class Ended(NamedTuple):
    """How work ended.

    Attributes
    ----------
    code : int or None
        Its exit code, minus a signal's number, or None if it had no end.
    text : str
        What it wrote to both streams.
    seconds : float
    """

    code: int | None
    text: str
    seconds: float


def in_fork(work: Callable[[], object], most_s: float) -> Ended:
    """Do work in a fork; what a command would print of an error is its text.

    The process must have no thread of TVM's or onnxruntime's: it imports, and forks.
    """
    with tempfile.TemporaryFile() as written:
        began_s = time.perf_counter()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.dup2(written.fileno(), 1)
                os.dup2(written.fileno(), 2)
                # A caller such as pytest may have put streams of its own in their place.
                sys.stdout, sys.stderr = (os.fdopen(to, "w", 1, closefd=False) for to in (1, 2))
                found = work()
                code = found if isinstance(found, int) else 0
            except FewtuneError as error:
                print(f"fewtune: {one_line(error)}", flush=True)
                code = error.exit_code
            except BaseException:  # noqa: BLE001 (what the command would print)
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(code)
        hangs = False
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
            if not hangs and time.perf_counter() - began_s > most_s:
                os.kill(child, signal.SIGKILL)
                hangs = True
            time.sleep(0.005)
        seconds = time.perf_counter() - began_s
        written.seek(0)
        text = written.read().decode(errors="replace")
        return Ended(None if hangs else os.waitstatus_to_exitcode(ended[1]), text, seconds)


def write_then(path: Path, content: bytes, read: Callable[[Path], object]) -> Callable[[], object]:
    """Work that writes a file and reads it."""

    def work() -> object:
        path.write_bytes(content)
        return read(path)

    return work
