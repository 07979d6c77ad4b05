"""The journal: every measured batch is on disk before the next begins.

It is one file of JSON lines. The first line is the header: the machine, target, TVM version and
options of the trials. Every later line is one event with a checksum. Only the last line can be
incomplete, after a kill or with a full disk: it is cut off when the journal is opened again.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

from fewtune.errors import JournalError, MachineError

_FORMAT = 2


class Journal:
    """An append-only event log.

    Parameters
    ----------
    path : Path
        The file; created with its header if missing.
    header : dict
        What the trials depend on. A journal with another header is refused.

    Attributes
    ----------
    events : list of dict
        The events found when the journal was opened, oldest first.

    Raises
    ------
    JournalError
        If the file is damaged before its last line, or was written under another header.
    """

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            raise JournalError(f"{path} is no file, and a journal is one: move it away")
        self.events: list[dict[str, Any]] = []
        if path.exists() and path.stat().st_size:
            self._read(header)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if path.stat().st_size == 0:
            self.append({"kind": "header", "format": _FORMAT, **header})

    def append(self, event: dict[str, Any]) -> None:
        """Write one event and force it to the disk.

        Raises
        ------
        MachineError
            If it cannot be written; a partly written line is removed again.
        """
        text = json.dumps(event, separators=(",", ":"), sort_keys=True)
        line = f"{zlib.crc32(text.encode()):08x} {text}\n".encode()
        size = os.fstat(self._descriptor).st_size
        try:
            written = 0
            while written < len(line):
                written += os.write(self._descriptor, line[written:])
            os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, size)
            raise MachineError(
                f"{self.path}: cannot write ({error.strerror}); every batch before this one is "
                "kept: free some space and run again to resume"
            ) from None

    def hand_over(self) -> None:
        """Wait until all events are kept; in a file they are already."""

    def close(self) -> None:
        """Close the file; the journal stays on disk."""
        os.close(self._descriptor)

    def _read(self, header: dict[str, Any]) -> None:
        content = self.path.read_bytes()
        lines = content.split(b"\n")
        torn = lines.pop()
        whole = len(content) - len(torn)
        for number, line in enumerate(lines, start=1):
            event = _parse(line)
            if event is None:
                if number == len(lines) and not torn:
                    # After a power cut the last line can be damaged too, by unordered blocks.
                    whole -= len(line) + 1
                    break
                raise JournalError(
                    f"{self.path}: line {number} is damaged; move the file away to start anew (the "
                    "lines before it can be kept with `head`)"
                )
            self.events.append(event)
        if whole < len(content):
            os.truncate(self.path, whole)
        if not self.events:
            return
        found = self.events.pop(0)
        expected = {"kind": "header", "format": _FORMAT, **header}
        for key in sorted({*found, *expected}):
            if found.get(key) != expected.get(key):
                raise JournalError(
                    f"{self.path} was written for {key} {found.get(key)!r}, this run has "
                    f"{expected.get(key)!r}: its trials do not hold here; move it away to start "
                    "anew"
                )


def _parse(line: bytes) -> dict[str, Any] | None:
    checksum, _, text = line.partition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(text):
            return None
        event = json.loads(text)
        return event if isinstance(event, dict) and isinstance(event.get("kind"), str) else None
    except (ValueError, RecursionError):
        return None
