"""pydantic's errors about a section, as one line for the user who wrote it."""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ValidationError


def nearest(word: object, known: Iterable[str], those: str = "known") -> str:
    """Say which of the known words ``word`` may have been meant to be."""
    known = [str(each) for each in known]
    close = difflib.get_close_matches(str(word), known, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f" ({those}: {', '.join(known) or 'none'})"


def complaint(error: ValidationError, place: str, options: type[BaseModel], given: object) -> str:
    """Name the key path, the bad value and what is allowed there.

    Parameters
    ----------
    error : pydantic.ValidationError
    place : str
        Key path of the section in the file.
    options : type of pydantic.BaseModel
        The class that refused the section.
    given : object
        The section as it stands in the file.
    """
    found = error.errors()
    # A typo gives an unknown key, and often a missing one: the unknown one is reported.
    first = next((item for item in found if item["type"] == "extra_forbidden"), found[0])
    location = _location(first["loc"], given)
    path = ".".join([place, *map(str, location)])
    if first["type"] == "extra_forbidden":
        known = options.model_fields if len(location) == 1 else ()
        hint = nearest(location[-1], known) if known else ""
        return f"{path} is no known key{hint}"
    if first["type"] == "missing":
        return f"{path} is missing"
    # Each member of a union reports the same value: list all that is allowed.
    same = [item for item in found if _location(item["loc"], given) == location]
    allowed = list(dict.fromkeys(_allowed(item) for item in same))
    value = first["input"]
    if first["type"] == "value_error" and not location:
        return f"{path}: {allowed[0]}"
    alternatives = " or ".join([allowed[0], *(text.removeprefix("give ") for text in allowed[1:])])
    return f"{path} is {reprlib.repr(value)}: {alternatives}"


def _location(steps: tuple[int | str, ...], given: Any) -> tuple[int | str, ...]:
    """Keep the steps that lead through ``given``: pydantic appends names of union members."""
    kept: list[int | str] = []
    for step in steps:
        if isinstance(given, dict):
            kept.append(step)
            given = given.get(step)
        elif isinstance(given, list) and isinstance(step, int) and step < len(given):
            kept.append(step)
            given = given[step]
        else:
            break
    return tuple(kept)


def _allowed(item: Any) -> str:
    """What pydantic asks for, as something to give."""
    text = re.sub("^Input should be (greater|less)", r"give a value \1", item["msg"])
    return text.removeprefix("Value error, ").replace("Input should be", "give")
