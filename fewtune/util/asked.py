"""How messages ask for an option: as of the command, or as an argument of a Python call."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

# In the environment, so that processes that a call starts know it.
_IN_PYTHON = "FEWTUNE_IN_PYTHON"
_ARGUMENTS = {"shape": "shapes", "constant": "constants"}


@contextlib.contextmanager
def in_python() -> Iterator[None]:
    """Ask for arguments while the block runs."""
    os.environ[_IN_PYTHON] = "1"
    try:
        yield
    finally:
        os.environ.pop(_IN_PYTHON, None)


def asked(option: str, key: str = "", value: str = "") -> str:
    """An option and what to give: ``--shape x=1,3``, or ``shapes={'x': (1,3)}``."""
    if _IN_PYTHON not in os.environ:
        return f"--{option} {key}{'=' if key else ''}{value}".rstrip()
    argument = _ARGUMENTS.get(option, option)
    if not key:
        return f"{argument}={value!r}" if value else argument
    if option == "shape":
        value = f"({value}{'' if ',' in value else ','})"
    return f"{argument}={{{key!r}: {value}}}"
