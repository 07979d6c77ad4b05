"""What options say of a model's inputs: shapes, dimensions, values, samples."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewtune.errors import InputError, quoted


@dataclass(frozen=True)
class Given:
    """The inputs of one model, as options give them."""

    # Of one shape, or of several of one library.
    shapes: dict[str, Any]
    dimensions: dict[str, list[int]]
    paddable: dict[str, float]
    constants: dict[str, Any]
    inputs: Path | None

    @classmethod
    def of(cls, options: argparse.Namespace) -> Given:
        """Read the options that a command has of these.

        Raises
        ------
        InputError
            If a text has another form, or a name is given twice.
        """

        def read(
            option: str, form: str, value: Callable[[str], Any], *, several: bool = False
        ) -> dict[str, Any]:
            return _read(f"--{option}", getattr(options, option, ()), form, value, several)

        inputs = getattr(options, "inputs", None)
        return cls(
            _by_regime(read("shape", "whole numbers, as INPUT=1,3,224,224", _sizes, several=True)),
            read("dimension", "a whole number or several, as NAME=1 or NAME=16,32", _sizes),
            read("paddable", "the value to pad with, as NAME=0", float),
            read("constant", "a number, true, a list or an .npy file, as INPUT=16000", _constant),
            None if inputs is None else Path(inputs),
        )

    @property
    def any(self) -> bool:
        """Whether anything is given."""
        return any(vars(self).values())

    def add(
        self, source: str, models: Path, name: str | None, seed: int = 0, replace: bool = False
    ) -> str:
        """Register ``source`` with these inputs under ``models``; its name."""
        from fewtune.model.source import add_model

        return add_model(
            source,
            models,
            name,
            self.shapes,
            seed,
            self.dimensions,
            replace,
            self.constants,
            self.inputs,
            self.paddable,
        )


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
