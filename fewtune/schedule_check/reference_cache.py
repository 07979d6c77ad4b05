"""Cache of references in files, for all processes of a command.

Two workers check candidates of one task, and so do later stages. The first process that computes
the expected outputs writes them to a file in the command's temporary folder, which is removed with
the command. The others map the file into their memory.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import tempfile
import zlib
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fewtune.process.temporary import shared_folder
from fewtune.schedule_check.expected import Expected

_FOLDER = "references"
# Most bytes of all files. References that are computed faster than this rate of bytes, or in less
# than this time, are not written: computing them again is as fast.
_MOST_BYTES, _BYTES_A_SECOND = 2**30, 1e9
_LEAST_S = 0.003
_ALIGNED, _LENGTH_BYTES = 64, 8


class CachedReference(NamedTuple):
    """The reference of one task.

    Attributes
    ----------
    expected : dict of Expected
        By number of the parameter.
    positive : bool
        Whether all arguments are positive.
    confirmed : bool
        Whether the kernel without a schedule has confirmed it.
    """

    expected: dict[int, Expected]
    positive: bool
    confirmed: bool


class ReferenceCache:
    """The files of one folder; without a folder, nothing is cached.

    Parameters
    ----------
    folder : Path, optional
        The command's temporary folder unless given.
    most_bytes : int
        Most bytes of all files; further references are not written.
    """

    def __init__(self, folder: Path | None = None, most_bytes: int = _MOST_BYTES) -> None:
        shared = shared_folder() if folder is None else folder
        self._folder = None if shared is None else shared / _FOLDER
        self._most_bytes = most_bytes

    def read(self, key: str) -> CachedReference | None:
        """The reference of a task; None if there is none, or its file is damaged."""
        if self._folder is None:
            return None
        try:
            with self._path(key).open("rb") as stream:
                content = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            return _parsed(content, key)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, key: str, found: CachedReference, spent_s: float) -> None:
        """Write a reference that took so many seconds, if it is slow enough and there is room."""
        size = sum(each.held_bytes for each in found.expected.values())
        if self._folder is None or spent_s < max(_LEAST_S, size / _BYTES_A_SECOND):
            return
        try:
            self._folder.mkdir(exist_ok=True)
            held = sum(file.stat().st_size for file in self._folder.iterdir())
            if held + size > self._most_bytes:
                return
            descriptor, beside = tempfile.mkstemp(dir=self._folder, prefix=".")
            try:
                with os.fdopen(descriptor, "wb") as stream:
                    for part in _parts(key, found):
                        stream.write(part)
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


def _parts(key: str, found: CachedReference) -> list[bytes | memoryview]:
    """Parts of the file: the length of its header, the header, and the arrays."""
    arrays, described, offset, checksum = [], [], 0, 0
    for place, expected in found.expected.items():
        for kind in ("value", "allowance"):
            array = getattr(expected, kind)
            if array is None:
                continue
            array = np.asarray(array, order="C")
            rest = -array.nbytes % _ALIGNED
            described.append([place, kind, str(array.dtype), list(array.shape), offset])
            for part in (array.reshape(-1).view(np.uint8).data, bytes(rest)):
                arrays.append(part)
                checksum = zlib.crc32(part, checksum)
            offset += array.nbytes + rest
    header = json.dumps(
        {
            "key": key,
            "positive": found.positive,
            "confirmed": found.confirmed,
            "arrays": described,
            "bytes": offset,
            "checksum": checksum,
        }
    ).encode()
    header += b" " * (-(len(header) + _LENGTH_BYTES) % _ALIGNED)
    return [len(header).to_bytes(_LENGTH_BYTES, "little"), header, *arrays]


def _parsed(content: mmap.mmap, key: str) -> CachedReference | None:
    length = int.from_bytes(content[:_LENGTH_BYTES], "little")
    begin = _LENGTH_BYTES + length
    header = json.loads(content[_LENGTH_BYTES:begin])
    body = np.frombuffer(content, np.uint8)[begin:]
    if header["key"] != key or len(body) != header["bytes"]:
        return None
    if zlib.crc32(body.data) != header["checksum"]:
        return None
    arrays: dict[int, dict[str, np.ndarray]] = {}
    for place, kind, dtype, shape, offset in header["arrays"]:
        size = prod(shape) * np.dtype(dtype).itemsize
        array = body[offset : offset + size].view(dtype).reshape(shape)
        arrays.setdefault(place, {})[kind] = array
    expected = {
        place: Expected(found["value"], found.get("allowance")) for place, found in arrays.items()
    }
    return CachedReference(expected, header["positive"], header["confirmed"])
