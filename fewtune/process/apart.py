"""Work in a process of its own: a crash of native code is reported, and the caller survives it.

onnxruntime, onnx, TVM and LLVM can end a process by a signal, on graphs that they do not expect.
The work runs in a child process, which notes its present step. If the child crashes, the next one
leaves out that step if it is optional, else all optional steps.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from fewtune import errors
from fewtune.errors import MACHINES_FAULT, FewtuneError, InputError, MachineError, disk_line
from fewtune.process.child_python import (
    SHOW_STDERR,
    child_python,
    end_by_interrupts,
    end_with_parent,
    is_child_of,
    was_interrupted,
)
from fewtune.process.contexts import without_gc
from fewtune.util.files import full_disk

LEFT_OUT = "left_out"
_NOTE, _RESULT = "note.json", "result.json"


@dataclass
class Note:
    """What a process is doing.

    Attributes
    ----------
    doing : str
        As in "it died while ...".
    step : str or None
        The optional step that it is in.
    optional : list of str
        The optional steps in use.
    left_out : dict of str
        Steps that are left out so far, with the reason.
    """

    doing: str = "it was starting"
    step: str | None = None
    optional: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


class _Noted:
    """The note of this process, in a file where a parent asked for one."""

    def __init__(self) -> None:
        self.note = Note()
        self._file: int | None = None

    def keep_in(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        self.write()

    def write(self) -> None:
        if self._file is not None:
            # Only the first line counts: the rest of an earlier, longer note may follow it.
            text = json.dumps(asdict(self.note)).encode()
            os.pwrite(self._file, text + b"\n", 0)


_noted = _Noted()


def at(doing: str, **more: Any) -> None:
    """Note what this process is doing, so that its death can be explained.

    Parameters
    ----------
    doing : str
        As in "it died while ...": "TVM was importing Conv (node 'c1')".
    more
        Other fields of `Note`.
    """
    _noted.note.doing = doing
    for name, value in more.items():
        setattr(_noted.note, name, value)
    _noted.write()


@contextmanager
def in_step(name: str) -> Iterator[None]:
    """Note that this process is in an optional step."""
    before = _noted.note.step
    _noted.note.step = name
    _noted.write()
    try:
        yield
    finally:
        _noted.note.step = before
        _noted.write()


def run_apart(work: str, job: dict[str, Any], meanwhile: Callable[[], object] | None = None) -> Any:
    """Run ``work`` in a child, and again without the step that crashed, until it ends by itself.

    Parameters
    ----------
    work : str
        ``module:function``, called with ``job``; what it returns is JSON.
    job : dict
        JSON values. Its entry ``left_out`` holds the steps to do without.
    meanwhile : callable, optional
        Called while the child works.

    Returns
    -------
    result
        What ``work`` returned.

    Raises
    ------
    FewtuneError
        What the work raised; `InputError` if it crashed without any optional step.
    MachineError
        If the system killed it, which happens if memory runs out, or if the disk is full.
    RuntimeError
        With the child's traceback, if it raised anything else.
    """
    with _Child(work, job) as child:
        if meanwhile is not None:
            meanwhile()
        return child.result()


def run_each_apart(work: str, jobs: Sequence[dict[str, Any]]) -> list[Any]:
    """Run ``work`` for every job at the same time, each as `run_apart` does, and raise as it does.

    If a job fails, the other children are ended.

    Parameters
    ----------
    work : str
    jobs : sequence of dict

    Returns
    -------
    results : list
        In the order of the jobs.
    """
    with ExitStack() as running:
        children = [running.enter_context(_Child(work, job)) for job in jobs]
        return [child.result() for child in children]


class _Child:
    """A child that does a job, started anew where an optional step crashed."""

    def __init__(self, work: str, job: dict[str, Any]) -> None:
        self._work, self._job = work, job
        self._left_out: dict[str, str] = dict(job.get(LEFT_OUT, {}))
        self._shown = bool(os.environ.get(SHOW_STDERR))

    def __enter__(self) -> _Child:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        self._scratch.cleanup()

    def result(self) -> Any:
        """What the work returned, after as many attempts as it takes."""
        while True:
            code = self._process.wait()
            folder = Path(self._scratch.name)
            if (folder / _RESULT).is_file():
                return _result(json.loads((folder / _RESULT).read_text()))
            self._leave_out(code, _note_of(folder))
            self._scratch.cleanup()
            self._start()

    def _start(self) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="fewtune-apart-")
        folder = Path(self._scratch.name)
        request = {"work": self._work, "job": {**self._job, LEFT_OUT: self._left_out}}
        (folder / "job.json").write_text(json.dumps(request, default=_plain))
        self._process = subprocess.Popen(
            [child_python(), "-m", "fewtune.process.apart", str(folder), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=None if self._shown else subprocess.DEVNULL,
        )

    def _leave_out(self, code: int, note: Note) -> None:
        """Choose what the next attempt does without; raises if there is nothing."""
        if code >= 0:
            raise RuntimeError(f"the process ended with exit code {code} while {note.doing}")
        if was_interrupted(code):
            raise KeyboardInterrupt
        ended_by = signal.Signals(-code)
        if ended_by == signal.SIGKILL:
            raise MachineError(
                f"the system killed the process while {note.doing}, most likely since it ran out "
                "of memory: give smaller shapes, or run it on a machine with more"
            )
        no_room = full_disk(Path(self._scratch.name))
        if no_room is not None:
            raise MachineError(disk_line(no_room))
        reason = f"the process was ended by {ended_by.name} while {note.doing}"
        further = _further(note, reason, self._left_out)
        if not further:
            hint = "" if self._shown else f"; set {SHOW_STDERR}=1 to see what it wrote"
            raise InputError(
                f"{reason}, with no optional step left to do without: export the model in another "
                f"way, or end it before that place{hint}"
            )
        self._left_out |= note.left_out | further


def _further(note: Note, reason: str, left_out: dict[str, str]) -> dict[str, str]:
    """What else to leave out after a crash: the step that crashed, else all optional steps."""
    if note.step is not None and note.step not in left_out:
        return {note.step: reason}
    return {name: reason for name in note.optional if name not in left_out}


def _plain(value: Any) -> Any:
    """A value of NumPy as JSON has it."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _note_of(folder: Path) -> Note:
    try:
        return Note(**json.loads((folder / _NOTE).read_text().splitlines()[0]))
    except (OSError, ValueError, TypeError, IndexError):
        return Note()


def _result(reply: dict[str, Any]) -> Any:
    if "result" in reply:
        return reply["result"]
    if "error" in reply:
        raise getattr(errors, reply["error"])(reply["message"])
    raise RuntimeError(f"in the process for it:\n{reply['traceback']}")


def _error(fault: BaseException) -> dict[str, str]:
    """An exception as its parent raises it: of the class of `fewtune.errors` that it is."""
    if isinstance(fault, FewtuneError):
        kind = next(c for c in type(fault).__mro__ if getattr(errors, c.__name__, None) is c)
        return {"error": kind.__name__, "message": str(fault)}
    if isinstance(fault, MemoryError):
        return {"error": "MachineError", "message": "this needs more memory than there is"}
    if isinstance(fault, OSError) and fault.errno in MACHINES_FAULT:
        return {"error": "MachineError", "message": disk_line(fault)}
    return {"traceback": traceback.format_exc()}


def main(folder: Path, parent: int) -> int:
    """Do the work that ``folder`` describes, for the process ``parent``; end this process."""
    end_by_interrupts()
    # The child never outlives the process that waits for it.
    end_with_parent()
    if not is_child_of(parent):
        return 1
    # Temporary files go where the parent removes them, however this process ends.
    tempfile.tempdir = str(folder)
    described = json.loads((folder / "job.json").read_text())
    _noted.keep_in(folder / _NOTE)
    try:
        with without_gc(for_good=True):
            work = resolve_name(described["work"])
        reply = {"result": work(described["job"])}
    except Exception as fault:  # noqa: BLE001 (the parent raises it)
        reply = _error(fault)
    whole = folder / f"{_RESULT}.part"
    whole.write_text(json.dumps(reply))
    whole.rename(folder / _RESULT)
    sys.stdout.flush()
    # Loaded libraries may crash when they are unloaded.
    os._exit(0)


if __name__ == "__main__":
    # The module that the work imports, not this copy of it, holds the note.
    from fewtune.process import apart

    sys.exit(apart.main(Path(sys.argv[1]), int(sys.argv[2])))
