"""Steps that run once: a step runs again only if something that it depends on changes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path

from pydantic import BaseModel

from fewtune.util.files import file_sha256, whole_directory, write_text


class KeptSteps:
    """Runs each step once, and again only if something that it depends on changes."""

    def __init__(self, folder: Path) -> None:
        self._keys = folder / "keys"
        self._key = ""

    def depend(self, *parts: str) -> None:
        """Add something that all later steps depend on."""
        self._key = hashlib.sha256("\n".join([self._key, *parts]).encode()).hexdigest()

    def run(
        self, name: str, options: BaseModel | None, output: Path, make: Callable[[Path], object]
    ) -> None:
        """Make ``output`` by a call with a scratch folder, unless it exists already."""
        self.depend(name, "" if options is None else options.model_dump_json())
        note = self._keys / name
        if output.is_dir() and note.is_file() and note.read_bytes() == self._key.encode():
            return
        note.unlink(missing_ok=True)
        with whole_directory(output) as scratch:
            make(scratch)
        write_text(note, self._key)


def digests(folder: Path) -> Iterable[str]:
    """The files of a folder by name and content."""
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        yield json.dumps([str(file.relative_to(folder)), file_sha256(file)])
