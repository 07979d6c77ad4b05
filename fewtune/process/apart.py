"""Work in a process of its own: a crash of native code is reported, and the caller survives it.

onnxruntime, onnx, TVM and LLVM can end a process by a signal, on graphs that they do not expect.
The work runs in a child process, which notes its present step. If the child crashes, the next one
leaves out that step if it is optional, else all optional steps.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, Field

from fewtune import errors
from fewtune.errors import (
    MACHINES_FAULT,
    FewtuneError,
    InputError,
    MachineError,
    disk_line,
    last_line,
)
from fewtune.process.child_python import (
    SHOW_STDERR,
    end_with_parent,
    ending,
    interrupt_of,
    is_child_of,
    parents_connection,
    started,
)
from fewtune.process.contexts import without_gc
from fewtune.util.files import full_disk


class Job(BaseModel, extra="forbid"):
    """Work that a child process does; its fields and its result are pickled.

    Attributes
    ----------
    left_out : dict of str
        Optional steps that the work does without, with the reason.
    """

    # Whether the child writes to its parent's streams.
    shows_output: ClassVar[bool] = False
    environment: ClassVar[dict[str, str]] = {}
    # Whether the child is no fork of the warm process.
    is_fresh: ClassVar[bool] = False
    # What a user can do if the system kills it, and if native code crashes.
    lighter: ClassVar[str] = "give smaller shapes, or run it on a machine with more memory"
    advice: ClassVar[str] = "export the model in another way, or end it before that place"

    left_out: dict[str, str] = Field(default_factory=dict)

    def run(self) -> Any:
        """Do the work."""
        raise NotImplementedError


class JobFailedError(RuntimeError):
    """An exception in a child that is no `FewtuneError`; ``line`` names it and its cause."""

    def __init__(self, line: str, trace: str) -> None:
        super().__init__(line, trace)
        self.line, self.trace = line, trace

    def __str__(self) -> str:
        return f"in the process for it:\n{self.trace}"


def as_raised(fault: Exception) -> FewtuneError | JobFailedError:
    """An exception as the parent raises it: of the class of `fewtune.errors` that it is."""
    if isinstance(fault, FewtuneError):
        kind = next(c for c in type(fault).__mro__ if getattr(errors, c.__name__, None) is c)
        return kind(str(fault))
    if isinstance(fault, MemoryError):
        return MachineError("this needs more memory than there is")
    if isinstance(fault, OSError) and fault.errno in MACHINES_FAULT:
        return MachineError(disk_line(fault))
    trace = "".join(traceback.format_exception(fault))
    return JobFailedError(f"{type(fault).__name__}: {last_line(fault)}", trace)


_JOB, _NOTE = "job", "note.json"


@dataclass
class Note:
    """What a process is doing.

    Attributes
    ----------
    doing, place : str
        As in "it died while ...", and where in that.
    since : float
        When it began with that, as `time.time` has it.
    step : str or None
        The optional step that it is in.
    optional : list of str
        The optional steps in use.
    left_out : dict of str
        Steps that are left out so far, with the reason.
    """

    doing: str = "starting"
    place: str = ""
    since: float = field(default_factory=time.time)
    step: str | None = None
    optional: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """What it is doing, and where."""
        return f"{self.doing}, at {self.place}" if self.place else self.doing


# Is told, now and then, what a child is doing.
Tell = Callable[[Note], object]
_TELL_EVERY_S = 0.5
_note = Note()
# The file of this process's note, where a parent asked for one.
_note_file: int | None = None


def keep_note_in(path: Path) -> None:
    """Write this process's note to a file, from now on."""
    global _note_file
    _note_file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    # The process that this one was forked from began long ago.
    _note.since = time.time()
    at(_note.doing, _note.place)


def at(doing: str, place: str = "", **more: Any) -> None:
    """Note what this process is doing, so that its death can be explained.

    Parameters
    ----------
    doing : str
        As in "it died while ...": "importing the graph".
    place : str
        Where in that: "operator Conv (node 'c1')".
    more
        Other fields of `Note`.
    """
    if doing != _note.doing:
        _note.since = time.time()
    _note.doing, _note.place = doing, place
    for name, value in more.items():
        setattr(_note, name, value)
    if _note_file is not None:
        # Only the first line counts: the rest of an earlier, longer note may follow it.
        os.pwrite(_note_file, json.dumps(asdict(_note)).encode() + b"\n", 0)


@contextmanager
def in_step(name: str) -> Iterator[None]:
    """Note that this process is in an optional step."""
    before = _note.step
    at(_note.doing, _note.place, step=name)
    try:
        yield
    finally:
        at(_note.doing, _note.place, step=before)


def run_apart(
    job: Job, meanwhile: Callable[[], object] | None = None, tell: Tell | None = None
) -> Any:
    """Run a job in a child, and again without the step that crashed, until it ends by itself.

    Parameters
    ----------
    job : Job
    meanwhile : callable, optional
        Called while the child works.
    tell : callable, optional
        Is told what the child is doing, about twice a second.

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
        return _result(child, tell)


def run_each_apart(jobs: Sequence[Job]) -> list[Any]:
    """Run jobs at the same time, each as `run_apart` does; if one fails, the others are ended."""
    with ExitStack() as running:
        children = [running.enter_context(Child(job)) for job in jobs]
        return [_result(child) for child in children]


class CrashedError(Exception):
    """A child that a signal ended."""

    def __init__(self, code: int, note: Note) -> None:
        super().__init__(f"the process {ending(code)} while {note.text}")
        self.code, self.note = code, note


class Child:
    """A child process that does a job, until the block ends."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __enter__(self) -> Child:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._connection.close()
        self._scratch.cleanup()

    def result(self, tell: Tell | None = None) -> Any:
        """Wait for the job's result, and tell what the child is doing.

        Raises
        ------
        KeyboardInterrupt
            If the child was interrupted, or terminated.
        MachineError
            If it crashed on a full disk, or if what it was forked from was killed.
        CrashedError
            If a signal ended it.
        """
        while tell is not None and not self._connection.poll(_TELL_EVERY_S):
            tell(_note_in(Path(self._scratch.name)))
        reply = None
        with suppress(EOFError, ConnectionResetError):
            reply = self._connection.recv()
        code, folder = self._process.wait(), Path(self._scratch.name)
        if reply is not None:
            result, error = reply
            if error is not None:
                raise error
            return result
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

    def restart(self, job: Job) -> None:
        """Do another job in a new process."""
        self.__exit__()
        self.job = job
        self._start()

    def _start(self) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="fewtune-apart-")
        folder, job = Path(self._scratch.name), self.job
        (folder / _JOB).write_bytes(pickle.dumps(job))
        self._process, self._connection = started(
            "fewtune.process.apart:do_job",
            f"{type(job).__module__}:{type(job).__qualname__}",
            folder,
            str(os.getpid()),
            shows_output=job.shows_output,
            is_fresh=job.is_fresh,
            environment=job.environment,
        )


def do_job(_kind: str, folder: str, parent: str) -> None:
    """Do the job that a folder holds, in a child of the process ``parent``."""
    end_with_parent()
    if not is_child_of(int(parent)):
        # The parent ended while this process was loading.
        return
    # Temporary files go where the parent removes them, however this process ends.
    tempfile.tempdir = folder
    keep_note_in(Path(folder, _NOTE))
    try:
        with without_gc(for_good=True):
            job = pickle.loads(Path(folder, _JOB).read_bytes())
        reply: tuple[Any, Exception | None] = (job.run(), None)
    except Exception as fault:  # noqa: BLE001 (the parent raises it)
        error = as_raised(fault)
        reply = (None, error)
        if isinstance(error, JobFailedError):
            print(error.trace, file=sys.stderr)
    parents_connection().send(reply)


def _result(child: Child, tell: Tell | None = None) -> Any:
    """What the job returned, after as many attempts as it takes."""
    while True:
        try:
            return child.result(tell)
        except CrashedError as crash:
            job, note = child.job, crash.note
            if crash.code == -signal.SIGKILL:
                raise MachineError(f"{crash}: {job.lighter}") from None
            # The step that crashed, else all optional steps.
            crashed = [note.step] if note.step else []
            further = [name for name in crashed if name not in job.left_out] or [
                name for name in note.optional if name not in job.left_out
            ]
            if not further:
                is_shown = bool(os.environ.get(SHOW_STDERR))
                hint = "" if is_shown else f"; set {SHOW_STDERR}=1 to see what it wrote"
                steps = ", with no optional step left to do without" if job.left_out else ""
                raise InputError(f"{crash}{steps}: {job.advice}{hint}") from None
            left_out = job.left_out | note.left_out | dict.fromkeys(further, str(crash))
            child.restart(job.model_copy(update={"left_out": left_out}))


def _note_in(folder: Path) -> Note:
    try:
        return Note(**json.loads((folder / _NOTE).read_text().splitlines()[0]))
    except (OSError, ValueError, TypeError, IndexError):
        return Note()
