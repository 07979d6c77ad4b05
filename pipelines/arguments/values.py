"""Options of the command line that need reading or checking."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from fewtune.errors import InputError, MachineError


def check_port(port: int, unless: str = "") -> None:
    """Refuse a port that is taken, unless the environment names a server instead.

    Raises
    ------
    InputError
        If it is no port.
    MachineError
        If it is taken.
    """
    if unless and os.environ.get(unless):
        return
    if not 0 < port < 65536:
        raise InputError(f"port {port} is none: give 1 to 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            reason = error.strerror or str(error)
            raise MachineError(
                f"port {port} cannot be used ({reason.lower()}): give another with --port"
            ) from None


def parse_shapes(texts: Sequence[str]) -> dict[str, list[int]]:
    """Read ``INPUT=1,3,224,224``.

    Raises
    ------
    InputError
        If a text has another form, or an input has two shapes.
    """
    shapes: dict[str, list[int]] = {}
    for name, value in _pairs("--shape", texts, "INPUT=1,3,224,224"):
        with _sizes("--shape", name, value, "INPUT=1,3,224,224"):
            shapes[name] = [int(size) for size in value.strip("[]").split(",")]
    return shapes


def parse_dimensions(texts: Sequence[str]) -> dict[str, int]:
    """Read ``NAME=1``.

    Raises
    ------
    InputError
        If a text has another form, or a dimension has two sizes.
    """
    dimensions: dict[str, int] = {}
    for name, value in _pairs("--dimension", texts, "NAME=1"):
        with _sizes("--dimension", name, value, "NAME=1"):
            dimensions[name] = int(value)
    return dimensions


def parse_constants(texts: Sequence[str]) -> dict[str, Any]:
    """Read ``INPUT=16000``, ``INPUT=[1,2]`` or ``INPUT=value.npy``.

    Raises
    ------
    InputError
        If a text has another form, or an input has two values.
    """
    constants: dict[str, Any] = {}
    for name, value in _pairs("--constant", texts, "INPUT=16000"):
        if value.endswith(".npy"):
            import numpy as np

            try:
                constants[name] = np.load(value, allow_pickle=False).tolist()
            except (OSError, ValueError, EOFError) as error:
                raise InputError(f"--constant {name}: {value} cannot be read: {error}") from None
            continue
        text = value if not ("," in value and not value.startswith("[")) else f"[{value}]"
        try:
            constants[name] = json.loads(text.lower())
        except (ValueError, RecursionError):
            raise InputError(
                f"--constant {name}={value}: give a number, true or false, a list such as [1,2], "
                "or an .npy file"
            ) from None
    return constants


def _pairs(option: str, texts: Sequence[str], form: str) -> Iterator[tuple[str, str]]:
    seen = set()
    for text in texts:
        # Names of inputs may hold an equals sign; sizes hold none.
        name, equals, value = text.rpartition("=")
        if not equals or not name:
            raise InputError(f"{option} {text}: give {form}")
        if name in seen:
            raise InputError(f"{option} {text}: {name!r} is given twice")
        seen.add(name)
        yield name, value


@contextlib.contextmanager
def _sizes(option: str, name: str, value: str, form: str) -> Iterator[None]:
    try:
        yield
    except ValueError:
        raise InputError(f"{option} {name}={value}: sizes are whole numbers, as {form}") from None
