"""Cache of references in files, for all processes of a command.

Two workers check candidates of one task, and so do later stages. The first process that computes
the expected outputs writes them to a file in the command's temporary folder, which is removed with
the command.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fewtune.process.temporary import shared_folder

_FOLDER = "references"
# Most bytes of all files; further references are computed by each process.
_MOST_BYTES = 2**30
_SETTINGS = "settings"


@dataclass
class CachedReference:
    """The reference of one task: outputs by number of the parameter, and how arguments are drawn.

    ``moved`` are outputs for arguments that were moved by a rounding, if that was needed. The
    scales of a kernel in eight bits are multiplied by two to the ``power``.
    """

    outputs: dict[int, np.ndarray] = field(default_factory=dict)
    moved: dict[int, np.ndarray] = field(default_factory=dict)
    positive: bool = False
    power: int = 0


class ReferenceCache:
    """The files of one folder, by default the command's; without a folder, nothing is cached.

    References beyond ``most_bytes`` in all files are not written.
    """

    def __init__(self, folder: Path | None = None, most_bytes: int = _MOST_BYTES) -> None:
        shared = shared_folder() if folder is None else folder
        self._folder = None if shared is None else shared / _FOLDER
        self._most_bytes = most_bytes

    def read(self, key: str) -> CachedReference | None:
        """The reference of a task; None if there is none, or its file is damaged."""
        if self._folder is None:
            return None
        found = CachedReference()
        try:
            with np.load(self._path(key), allow_pickle=False) as content:
                positive, found.power = map(int, content[_SETTINGS])
                for name in set(content.files) - {_SETTINGS}:
                    kind, place = name.split()
                    getattr(found, kind)[int(place)] = content[name]
        except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error):
            return None
        found.positive = bool(positive)
        return found

    def write(self, key: str, found: CachedReference) -> None:
        """Write a reference if there is room."""
        arrays: dict[str, Any] = {_SETTINGS: np.array([found.positive, found.power])}
        arrays |= {f"outputs {place}": array for place, array in found.outputs.items()}
        arrays |= {f"moved {place}": array for place, array in found.moved.items()}
        if self._folder is None:
            return
        try:
            self._folder.mkdir(exist_ok=True)
            held = sum(file.stat().st_size for file in self._folder.iterdir())
            if held + sum(each.nbytes for each in arrays.values()) > self._most_bytes:
                return
            descriptor, beside = tempfile.mkstemp(dir=self._folder, prefix=".")
            try:
                with os.fdopen(descriptor, "wb") as stream:
                    np.savez(stream, **arrays)
                os.replace(beside, self._path(key))
            except BaseException:
                Path(beside).unlink(missing_ok=True)
                raise
        except OSError:
            # The disk is full, or another process of the command has ended with its folder.
            return

    def _path(self, key: str) -> Path:
        assert self._folder is not None
        return self._folder / hashlib.sha256(key.encode()).hexdigest()
