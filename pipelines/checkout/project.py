"""The checkout that a command works on, found from the folder it was called in."""

from __future__ import annotations

from pathlib import Path

from fewtune.errors import InputError
from stages.paths import Places


def find_root(start: Path | None = None) -> Path:
    """The nearest folder, from ``start`` upwards, that holds the pipeline's definition.

    Raises
    ------
    InputError
        If there is none.
    """
    start = (start or Path.cwd()).resolve()
    for folder in (start, *start.parents):
        if Places(folder).pipeline.is_file():
            return folder
    raise InputError(
        f"{start} is not inside a fewtune project: no folder from here upwards has a "
        f"{Places().pipeline}; change to your checkout first"
    )
