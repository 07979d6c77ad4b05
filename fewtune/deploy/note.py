"""A note behind a library's last byte, where no loader looks: what it is, and where it can run.

It is read before the library is mapped. A library that is cut off ends the process that maps it by
SIGBUS, and the constructors of a foreign one run as soon as it is loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import struct
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, BinaryIO, get_args, get_origin, get_type_hints

from fewtune.errors import InputError, MachineError

# The file's end: a digest of the note, how many bytes the note has, and a mark.
END = struct.Struct("<32sQ8s")
_MARK = b"fewtune2"
_LONGEST_NOTE = 1 << 20
_AGAIN = "compile the model again, or copy the file again"
CPUINFO = Path("/proc/cpuinfo")
# The keys under which the kernel lists what a CPU has: of x86, of ARM.
CPU_KEYS = ("flags", "Features")
# Kinds of TVM's targets that are code for CPUs.
_CPU_KINDS = ("llvm", "c")
# By NumPy's name: the name of a tensor's type in onnxruntime.
TYPES = {
    "float32": "tensor(float)",
    "float64": "tensor(double)",
    "float16": "tensor(float16)",
    "bool": "tensor(bool)",
    **{f"{u}int{bits}": f"tensor({u}int{bits})" for u in ("", "u") for bits in (8, 16, 32, 64)},
}


@dataclass(frozen=True)
class Tensor:
    """An input or an output: its name, NumPy's name of its type, its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Function:
    """What a library computes for one set of shapes."""

    # For its users.
    name: str
    # In the library.
    function: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


@dataclass(frozen=True)
class Paddable:
    """A dimension that a session may pad up to the next shape, and with which value."""

    name: str
    value: float
    # The axis that has it, by name of the input, and of the output that is cut back.
    inputs: dict[str, int]
    outputs: dict[str, int]


@dataclass(frozen=True)
class Note:
    """What a library says of itself."""

    # Of all bytes before the note.
    sha256: str
    # Its name, and the digest of its ONNX file.
    model: str
    model_sha256: str
    # One for each set of shapes; names and types are the same in all.
    functions: tuple[Function, ...]
    # The lowest and the highest value of each integer input that indexes a table.
    limits: dict[str, tuple[int, int]]
    # The resolved TVM target, as JSON.
    target: str
    # Of the CPU, as `uname -m` names it, and the extensions that the code may use.
    architecture: str
    extensions: tuple[str, ...]
    threads: int
    # Of fewtune, tvm and others that made it.
    versions: dict[str, str]
    # How far outputs were from onnxruntime's (1 allowance is the most that is accepted), and on how
    # many draws of inputs.
    verified: dict[str, float]
    # Measured medians of this library and its peers, if known, and their conditions.
    latencies_ms: dict[str, float] = field(default_factory=dict)
    conditions: dict[str, str] = field(default_factory=dict)
    # What its users may pad.
    paddable: tuple[Paddable, ...] = field(default_factory=tuple)

    @property
    def runs_here(self) -> bool:
        """Whether it is for CPUs of this machine's architecture."""
        return self.runs_on_cpu and self.architecture == platform.machine()

    @property
    def runs_on_cpu(self) -> bool:
        """Whether its kernels are code for a CPU."""
        return json.loads(self.target).get("kind") in _CPU_KINDS


def read_note(library: Path) -> Note:
    """The note of a library that is whole.

    Raises
    ------
    InputError
        If it has none, is cut off, or is not what the note was written for.
    """
    try:
        with library.open("rb") as stream:
            note, size = _note_in(stream, library)
            stream.seek(0)
            digest, left = hashlib.sha256(), size
            while left and (chunk := stream.read(min(left, 1 << 20))):
                digest.update(chunk)
                left -= len(chunk)
    except OSError as fault:
        raise InputError(f"{library} cannot be read ({fault.strerror}): {_AGAIN}") from None
    if digest.hexdigest() != note.sha256:
        raise InputError(f"{library} is damaged, its digest is another one: {_AGAIN}")
    return note


def _note_in(stream: BinaryIO, library: Path) -> tuple[Note, int]:
    """The note at the end of a file, and how many bytes are before it."""
    end = stream.seek(0, os.SEEK_END) - END.size
    stream.seek(max(end, 0))
    sha256, length, mark = END.unpack(stream.read().rjust(END.size, b"\0"))
    if mark != _MARK or length > min(end, _LONGEST_NOTE):
        raise InputError(f"{library} is no library of fewtune, or is cut off: {_AGAIN}")
    stream.seek(end - length)
    text = stream.read(length)
    try:
        if hashlib.sha256(text).digest() != sha256:
            raise ValueError("another digest")
        note = _parsed(Note, json.loads(text))
    except (ValueError, TypeError):
        raise InputError(f"{library} has a damaged note: {_AGAIN}") from None
    return note, end - length


def _parsed(kind: Any, value: Any) -> Any:
    """A value of JSON as one of a type; fields of later versions are left alone."""
    arguments = get_args(kind)
    if is_dataclass(kind):
        made: Any = kind
        hints = get_type_hints(kind)
        known = {name: each for name, each in value.items() if name in hints}
        return made(**{name: _parsed(hints[name], each) for name, each in known.items()})
    if get_origin(kind) is dict:
        return {key: _parsed(arguments[1], each) for key, each in value.items()}
    if get_origin(kind) is tuple:
        return tuple(_parsed(arguments[0], each) for each in value)
    return value


def tail(note: Note) -> bytes:
    """A note as it stands behind a library, with the file's end."""
    text = json.dumps(asdict(note), sort_keys=True).encode()
    return text + END.pack(hashlib.sha256(text).digest(), len(text), _MARK)


def renew(library: Path, note: Note) -> None:
    """Give a library another note, such as one that has latencies."""
    with library.open("r+b") as stream:
        stream.truncate(_note_in(stream, library)[1])
        stream.seek(0, os.SEEK_END)
        stream.write(tail(note))


def require_runnable(library: Path) -> Note:
    """The note of a library that this machine's CPU can run.

    Raises
    ------
    InputError
        As `read_note`; if it is code for a GPU.
    MachineError
        If it was made for another CPU.
    """
    note = read_note(library)
    if not note.runs_on_cpu:
        raise InputError(f"{library} was made for a GPU: load it with TVM itself")
    if note.architecture != platform.machine():
        raise MachineError(
            f"{library} was made for {note.architecture}, and this machine is {platform.machine()}"
        )
    if lacking := lacking_here(note.extensions):
        raise MachineError(
            f"{library} was made for a CPU with {', '.join(lacking)}, which this one lacks: tune "
            "the model here"
        )
    return note


def cpu_flags(cpuinfo: str | None = None) -> dict[str, set[str]]:
    """What the kernel lists of the first CPU, by the key of the list; empty if it says nothing."""
    if cpuinfo is None:
        cpuinfo = CPUINFO.read_text(errors="replace") if CPUINFO.is_file() else ""
    for line in cpuinfo.splitlines():
        key, _, words = line.partition(":")
        if key.strip() in CPU_KEYS:
            return {key.strip(): set(words.split())}
    return {}


def lacking_here(needed: Iterable[str]) -> list[str]:
    """Those of the extensions that this machine's CPU lacks; none where the kernel says nothing."""
    for there in cpu_flags().values():
        return [flag for flag in needed if flag not in there]
    return []
