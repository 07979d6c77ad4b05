"""What options say of a model's inputs: shapes, dimensions, values, samples."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fewtune.errors import InputError, quoted


def given_inputs(options: argparse.Namespace) -> dict[str, Any]:
    """What options say of one model's inputs, as `fewtune.model.source.add_model` takes it.

    Raises
    ------
    InputError
        If a text has another form, or a name is given twice.
    """

    def read(option: str, form: str, value: Callable[[str], Any], several: bool = False) -> Any:
        return _read(f"--{option}", getattr(options, option, ()), form, value, several)

    inputs = getattr(options, "inputs", None)
    return {
        "shapes": _by_regime(read("shape", "whole numbers, as INPUT=1,3,224,224", _sizes, True)),
        "dimensions": read("dimension", "a whole number or several, as NAME=16,32", _sizes),
        "paddable": read("paddable", "the value to pad with, as NAME=0", float),
        "constants": read("constant", "a number, true, a list or an .npy file", _constant),
        "inputs": None if inputs is None else Path(inputs),
    }


def _by_regime(shapes: dict[str, list[list[int]]]) -> dict[str, Any]:
    """Shapes of inputs by the name of the shape, where names are given: ``prefill:ids=1,128``."""
    # TensorFlow's names of inputs end in a colon and a number.
    parts = {name: name.partition(":") for name in shapes}
    named = {name for name, (_, _, rest) in parts.items() if rest and not rest.isdigit()}
    found: dict[str, dict[str, list[int]]] = {}
    for name, given in shapes.items() if named else ():
        regime, _, rest = parts[name]
        if name not in named or not regime:
            raise InputError(f"--shape {name}: name each shape, as prefill:{name}=..., or none")
        if len(given) > 1:
            raise InputError(f"--shape {name}: {name!r} is given twice")
        found.setdefault(regime, {})[rest] = given[0]
    return found or dict(shapes)


def _sizes(text: str) -> list[int]:
    return [int(size) for size in text.strip("[]").split(",")]


def _constant(text: str) -> Any:
    if text.endswith(".npy"):
        import numpy as np

        return np.load(text, allow_pickle=False).tolist()
    return json.loads((f"[{text}]" if "," in text and not text.startswith("[") else text).lower())


def _read(
    option: str,
    texts: Sequence[str],
    form: str,
    value: Callable[[str], Any],
    several: bool,
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in texts:
        # Names of inputs may hold an equals sign; values hold none.
        name, equals, given = text.rpartition("=")
        if not equals or not name:
            raise InputError(f"{option} {text}: give {form}")
        if name in found and not several:
            raise InputError(f"{option} {text}: {name!r} is given twice")
        try:
            found[name] = [*found.get(name, []), value(given)] if several else value(given)
        except (OSError, ValueError, EOFError, RecursionError) as error:
            why = f" ({quoted(error)})" if given.endswith(".npy") else ""
            raise InputError(f"{option} {text}: give {form}{why}") from None
    return found
