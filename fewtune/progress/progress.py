"""Progress: a line for each batch, and one for the step of another process's work."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TextIO

from fewtune.process.apart import Note

# Names the pipe of a caller's function (`heard_by`).
PIPE = "FEWTUNE_PROGRESS"
# A step that takes this long gets a line in a log, and then another one every so often.
_LEAST_S, _AGAIN_S = 2.0, 30.0
# Moves to the begin of a terminal's line, and clears it.
_CLEAR = "\r\x1b[K"


@dataclass(frozen=True)
class Snapshot:
    """Where a run stands."""

    phase: str
    task: str
    trials: int
    trials_total: int
    elapsed_s: float
    detail: str = ""
    default_ms: float | None = None
    best_ms: float | None = None
    estimated_latency_ms: float | None = None
    left_s: float | None = None
    failures: dict[str, int] = field(default_factory=dict)

    def line(self) -> str:
        """The snapshot as one line of text."""
        parts = [f"{self.phase} {self.trials}/{self.trials_total} trials", self.task]
        if self.detail:
            parts.append(self.detail)
        if self.best_ms:
            parts.append(f"best {self.best_ms:.4g} ms")
        if self.best_ms and self.default_ms:
            parts[-1] += f", {self.default_ms / self.best_ms:.2f}x of default {self.default_ms:.4g}"
        if self.estimated_latency_ms is not None:
            parts.append(f"model about {self.estimated_latency_ms:.4g} ms")
        if self.failures:
            parts.append("failed: " + ", ".join(f"{k} {v}" for k, v in self.failures.items()))
        left = "" if self.left_s is None else f", about {self.left_s:.0f} s left"
        return " | ".join([*parts, f"{self.elapsed_s:.0f} s{left}"])


class Progress:
    """Writes a line for each snapshot to a stream, or the snapshot to a caller's pipe."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout

    def show(self, snapshot: Snapshot) -> None:
        """Show where the run stands now."""
        self._write(asdict(snapshot), snapshot.line())

    def say(self, text: str) -> None:
        """Print a line."""
        self._write(text, text)

    def _write(self, content: object, line: str) -> None:
        if pipe := os.environ.get(PIPE):
            # One that has ended, or reads no more, stops no tuning.
            with contextlib.suppress(OSError), open(pipe, "w") as stream:
                stream.write(json.dumps(content) + "\n")
            return
        self._stream.write(line + "\n")
        self._stream.flush()


class Steps:
    """Shows which step of another process's work is under way, and since when."""

    def __init__(self, what: str, stream: TextIO | None = None) -> None:
        self._what, self._stream = what, stream or sys.stdout
        self._is_live = self._stream.isatty() and not os.environ.get(PIPE)
        self._since = 0.0
        self._next_s = _LEAST_S

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_live:
            self._stream.write(_CLEAR)
            self._stream.flush()

    def __call__(self, note: Note) -> None:
        """Show what the process is doing."""
        took_s = time.time() - note.since
        if note.since != self._since:
            self._since, self._next_s = note.since, _LEAST_S
        if self._is_live:
            line = f"{self._what}: {note.text}, {took_s:.0f} s"
            self._stream.write(_CLEAR + line[: shutil.get_terminal_size().columns - 1])
            self._stream.flush()
        elif took_s >= self._next_s:
            self._next_s = took_s + _AGAIN_S
            began = datetime.fromtimestamp(note.since)
            line = f"{self._what}: {note.text} since {began:%H:%M:%S} ({took_s:.0f} s)"
            Progress(self._stream).say(line)


_LOG = logging.getLogger("fewtune")
_END = "\n"


@contextlib.contextmanager
def heard_by(tell: Callable[[Snapshot], object]) -> Iterator[None]:
    """Give the snapshots of this process's children to a function while the block runs.

    Other lines of progress are logged. What the function raises is raised at the block's end.
    """
    faults: list[Exception] = []
    with tempfile.TemporaryDirectory(prefix="fewtune-") as folder:
        path = Path(folder) / "progress"
        os.mkfifo(path)
        # With a writer of its own, reading does not end with a child.
        stream = os.fdopen(os.open(path, os.O_RDWR), "r+b", buffering=0)
        reader = threading.Thread(target=_read, args=(stream.fileno(), tell, faults), daemon=True)
        reader.start()
        os.environ[PIPE] = str(path)
        try:
            yield
        finally:
            os.environ.pop(PIPE, None)
            stream.write(_END.encode())
            reader.join()
            stream.close()
    if faults:
        raise faults[0]


def _read(descriptor: int, tell: Callable[[Snapshot], object], faults: list[Exception]) -> None:
    with os.fdopen(os.dup(descriptor)) as lines:
        for line in lines:
            if line == _END:
                return
            content = json.loads(line)
            if isinstance(content, str):
                _LOG.info("%s", content)
            elif not faults:
                try:
                    tell(Snapshot(**content))
                except Exception as fault:  # noqa: BLE001 (raised when the work is done)
                    faults.append(fault)
