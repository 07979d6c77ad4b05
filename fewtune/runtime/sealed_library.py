"""A note behind a library's last byte, where no loader looks: its digest, and where it can run.

It is read before the library is mapped. A library that is cut off ends the process that maps it by
SIGBUS, and the constructors of a foreign one run as soon as it is loaded.
"""

from __future__ import annotations

import hashlib
import os
import platform
import struct
from pathlib import Path

from pydantic import Field, ValidationError

from fewtune.artifacts import Fingerprint, Part
from fewtune.errors import InputError, MachineError, last_line
from fewtune.runtime.host_features import lacking_here, needed_extensions
from fewtune.runtime.target import architecture, target_from_json
from fewtune.runtime.tvm import tvm, usable_cores
from fewtune.util.files import file_sha256

# The file's end: how many bytes the note has, and a mark.
_END, _MARK = struct.Struct("<Q8s"), b"fewtune1"
_LONGEST_NOTE = 1 << 20
_AGAIN = "compile the model again, or copy the file again"


class LibraryNote(Part):
    """What a library says of itself."""

    sha256: str = Field(description="of all bytes before the note")
    target: str = Field(description="the resolved TVM target, as JSON")
    architecture: str = Field(description="of the CPU, as `uname -m` names it")
    extensions: list[str] = Field(description="of the CPU that its code may use")
    threads: int = Field(ge=1)
    tvm: str = Field(description="version of apache-tvm that made it")


def seal(library: Path, fingerprint: Fingerprint) -> None:
    """Add the note to a library that was just made for a machine."""
    target = target_from_json(fingerprint.target)
    note = LibraryNote(
        sha256=file_sha256(library),
        target=fingerprint.target,
        architecture=architecture(target),
        extensions=needed_extensions(target),
        threads=fingerprint.threads,
        tvm=tvm.__version__,
    )
    text = note.model_dump_json().encode()
    with library.open("ab") as stream:
        stream.write(text + _END.pack(len(text), _MARK))


def read_note(library: Path) -> LibraryNote:
    """The note of a library that is whole.

    Raises
    ------
    InputError
        If it has none, is cut off, or is not what the note was written for.
    """
    try:
        with library.open("rb") as stream:
            end = stream.seek(0, os.SEEK_END) - _END.size
            stream.seek(max(end, 0))
            length, mark = _END.unpack(stream.read().ljust(_END.size, b"\0"))
            if mark != _MARK or length > min(end, _LONGEST_NOTE):
                raise InputError(f"{library} is no library of fewtune, or is cut off: {_AGAIN}")
            stream.seek(end - length)
            note = LibraryNote.model_validate_json(stream.read(length))
            stream.seek(0)
            digest, left = hashlib.sha256(), end - length
            while left and (chunk := stream.read(min(left, 1 << 20))):
                digest.update(chunk)
                left -= len(chunk)
    except (OSError, ValidationError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else "its note is damaged"
        raise InputError(f"{library} cannot be read ({reason}): {_AGAIN}") from None
    if digest.hexdigest() != note.sha256:
        raise InputError(f"{library} is damaged, its digest is another one: {_AGAIN}")
    return note


def require_runnable(library: Path) -> LibraryNote:
    """The note of a library that can run on this machine, in this process.

    Raises
    ------
    InputError
        As `read_note`; if another version of TVM made it.
    MachineError
        If it was made for another CPU, or for more threads than there are cores.
    """
    note = read_note(library)
    if note.architecture != platform.machine():
        raise MachineError(
            f"{library} was made for {note.architecture}, and this machine is {platform.machine()}"
        )
    if lacking := lacking_here(note.extensions):
        raise MachineError(
            f"{library} was made for a CPU with {', '.join(lacking)}, which this one lacks: tune "
            "the model here"
        )
    if note.threads > usable_cores():
        raise MachineError(
            f"{library} was made for {note.threads} threads, and this process may use "
            f"{usable_cores()} cores: tune the model for {usable_cores()}"
        )
    if note.tvm != tvm.__version__:
        raise InputError(
            f"{library} was made by TVM {note.tvm}, and this is {tvm.__version__}: compile the "
            "model again"
        )
    try:
        target_from_json(note.target)
    except Exception as fault:  # noqa: BLE001 (TVM raises several kinds for a bad target)
        raise InputError(f"{library} has a damaged note ({last_line(fault)}): {_AGAIN}") from None
    return note
