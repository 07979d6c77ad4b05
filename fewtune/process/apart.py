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
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from fewtune import errors
from fewtune.errors import (
    MACHINES_FAULT,
    FewtuneError,
    InputError,
    MachineError,
    disk_line,
    last_line,
)
from fewtune.process.child_python import SHOW_STDERR, child_python, ending, interrupt_of
from fewtune.util.files import full_disk


class Job(BaseModel):
    """Work that a child process does; its fields are sent as JSON.

    Attributes
    ----------
    left_out : dict of str
        Optional steps that the work does without, with the reason.
    """

    model_config = ConfigDict(extra="forbid")
    # Whether the child writes to its parent's streams.
    shows_output: ClassVar[bool] = False
    environment: ClassVar[dict[str, str]] = {}
    # What a user can do if native code crashes.
    advice: ClassVar[str] = "export the model in another way, or end it before that place"

    left_out: dict[str, str] = Field(default_factory=dict)

    def run(self) -> Any:
        """Do the work; the result is made of JSON values."""
        raise NotImplementedError

    @classmethod
    def place(cls) -> str:
        """Where the child finds the class: ``module:class``."""
        return f"{cls.__module__}:{cls.__qualname__}"


class JobFailedError(RuntimeError):
    """An exception in a child that is no `FewtuneError`; ``line`` names it and its cause."""

    def __init__(self, line: str, trace: str) -> None:
        super().__init__(f"in the process for it:\n{trace}")
        self.line = line


@dataclass
class Reply:
    """A job's result, the error that a user can mend, or any other exception."""

    result: Any = None
    error: str = ""
    message: str = ""
    trace: str = ""

    @classmethod
    def of_fault(cls, fault: Exception) -> Reply:
        """An exception as the parent raises it: of the class of `fewtune.errors` that it is."""
        if isinstance(fault, FewtuneError):
            kind = next(c for c in type(fault).__mro__ if getattr(errors, c.__name__, None) is c)
            return cls(error=kind.__name__, message=str(fault))
        if isinstance(fault, MemoryError):
            return cls(error="MachineError", message="this needs more memory than there is")
        if isinstance(fault, OSError) and fault.errno in MACHINES_FAULT:
            return cls(error="MachineError", message=disk_line(fault))
        message = f"{type(fault).__name__}: {last_line(fault)}"
        trace = "".join(traceback.format_exception(fault))
        return cls(error="JobFailedError", message=message, trace=trace)

    def get(self) -> Any:
        """The result; raises if there is none."""
        if self.trace:
            raise JobFailedError(self.message, self.trace)
        if self.error:
            raise getattr(errors, self.error)(self.message)
        return self.result


JOB, NOTE, REPLY = "job.json", "note.json", "reply.json"


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


_note = Note()
# The file of this process's note, where a parent asked for one.
_note_file: int | None = None


def keep_note_in(path: Path) -> None:
    """Write this process's note to a file, from now on."""
    global _note_file
    _note_file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    at(_note.doing)


def at(doing: str, **more: Any) -> None:
    """Note what this process is doing, so that its death can be explained.

    Parameters
    ----------
    doing : str
        As in "it died while ...": "TVM was importing Conv (node 'c1')".
    more
        Other fields of `Note`.
    """
    _note.doing = doing
    for name, value in more.items():
        setattr(_note, name, value)
    if _note_file is not None:
        # Only the first line counts: the rest of an earlier, longer note may follow it.
        os.pwrite(_note_file, json.dumps(asdict(_note)).encode() + b"\n", 0)


@contextmanager
def in_step(name: str) -> Iterator[None]:
    """Note that this process is in an optional step."""
    before = _note.step
    at(_note.doing, step=name)
    try:
        yield
    finally:
        at(_note.doing, step=before)


def run_apart(job: Job, meanwhile: Callable[[], object] | None = None) -> Any:
    """Run a job in a child, and again without the step that crashed, until it ends by itself.

    Parameters
    ----------
    job : Job
    meanwhile : callable, optional
        Called while the child works.

    Returns
    -------
    result
        What `Job.run` returned.

    Raises
    ------
    FewtuneError
        What the job raised; `InputError` if it crashed without any optional step.
    MachineError
        If it was killed, which happens if memory runs out, or if the disk is full.
    JobFailedError
        With the child's traceback, if it raised anything else.
    """
    with Child(job) as child:
        if meanwhile is not None:
            meanwhile()
        return _result(child)


def run_each_apart(jobs: Sequence[Job]) -> list[Any]:
    """Run jobs at the same time, each as `run_apart` does; if one fails, the others are ended."""
    with ExitStack() as running:
        children = [running.enter_context(Child(job)) for job in jobs]
        return [_result(child) for child in children]


class CrashedError(Exception):
    """A child that a signal ended."""

    def __init__(self, code: int, note: Note) -> None:
        super().__init__(f"the process {ending(code)} while {note.doing}")
        self.code, self.note = code, note


class Child:
    """A child process that does a job, until the block ends."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __enter__(self) -> Child:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        self._scratch.cleanup()

    def result(self) -> Any:
        """Wait for the job's result.

        Raises
        ------
        KeyboardInterrupt
            If the child was interrupted, or terminated.
        MachineError
            If it crashed on a full disk, or if what it was forked from was killed.
        CrashedError
            If a signal ended it.
        """
        code, folder = self._process.wait(), Path(self._scratch.name)
        if (folder / REPLY).is_file():
            return Reply(**json.loads((folder / REPLY).read_text())).get()
        if interrupt := interrupt_of(code):
            raise interrupt
        no_room = full_disk(folder)
        if no_room is not None and code != -signal.SIGKILL:
            raise MachineError(disk_line(no_room))
        crash = CrashedError(code, _note_in(folder))
        if code < 0:
            raise crash
        # The process that it was forked from was killed, and took it along.
        raise MachineError(f"{crash}: run it again, it goes on where it stopped")

    def again_without(self, note: Note, reason: str) -> bool:
        """Start the job anew without what crashed: its step, else all optional steps.

        Returns
        -------
        is_started : bool
            False if nothing is left to do without.
        """
        left_out = self.job.left_out
        if note.step is not None and note.step not in left_out:
            further = {note.step: reason}
        else:
            further = {name: reason for name in note.optional if name not in left_out}
        if further:
            left_out = left_out | note.left_out | further
            self.job = self.job.model_copy(update={"left_out": left_out})
            self._scratch.cleanup()
            self._start()
        return bool(further)

    def _start(self) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="fewtune-apart-")
        folder, job = Path(self._scratch.name), self.job
        (folder / JOB).write_text(json.dumps(job.model_dump(), default=_plain))
        hidden = None if job.shows_output else subprocess.DEVNULL
        self._process = subprocess.Popen(
            [child_python(), "-m", "fewtune.process.child", job.place(), folder, str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=hidden,
            stderr=None if os.environ.get(SHOW_STDERR) else hidden,
            env={**os.environ, **job.environment},
        )


def _result(child: Child) -> Any:
    """What the job returned, after as many attempts as it takes."""
    while True:
        try:
            return child.result()
        except CrashedError as crash:
            if crash.code == -signal.SIGKILL:
                raise MachineError(
                    f"{crash}: give smaller shapes, or run it on a machine with more memory"
                ) from None
            if not child.again_without(crash.note, str(crash)):
                is_shown = bool(os.environ.get(SHOW_STDERR))
                hint = "" if is_shown else f"; set {SHOW_STDERR}=1 to see what it wrote"
                steps = ", with no optional step left to do without" if child.job.left_out else ""
                raise InputError(f"{crash}{steps}: {child.job.advice}{hint}") from None


def _plain(value: Any) -> Any:
    """A value of NumPy as JSON has it; anything else as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _note_in(folder: Path) -> Note:
    try:
        return Note(**json.loads((folder / NOTE).read_text().splitlines()[0]))
    except (OSError, ValueError, TypeError, IndexError):
        return Note()
