"""The reference of a model's outputs: onnxruntime's, computed once and stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fewtune.errors import InputError
from fewtune.verify.comparison import Difference, Expected, compare_outputs
from fewtune.verify.taps import Observable, Runs, Site, Tap, check_taps

FILE = "reference.npz"
# Takes inputs by name, and returns outputs in the model's order.
Run = Callable[[dict[str, np.ndarray]], Sequence[np.ndarray]]


class Draw(NamedTuple):
    """One set of inputs by name, with a name for messages, such as ``normal inputs``."""

    name: str
    feeds: dict[str, np.ndarray]


@dataclass(frozen=True)
class Checked:
    """A draw of inputs and onnxruntime's outputs for it."""

    draw: Draw
    outputs: list[Expected]


@dataclass(frozen=True)
class Reference:
    """Draws of inputs with onnxruntime's outputs and their noise; the user's inputs come first.

    ``notes`` tell the user for which draws onnxruntime itself fails; ``taps`` are intermediate
    values of the first draw. A library may differ on the draws of ``rare``, which are not stored.
    """

    checked: list[Checked]
    notes: list[str]
    taps: list[Tap] = field(default_factory=list)
    rare: list[Checked] = field(default_factory=list)

    @property
    def feeds(self) -> dict[str, np.ndarray]:
        """Inputs to measure with."""
        return self.checked[0].draw.feeds

    def check(self, run: Run, factor: float = 1.0) -> Difference:
        """Run a function on every draw and compare its outputs; the worst difference is returned.

        ``factor`` multiplies every allowance.
        """
        worst = Difference()
        for each in self.checked:
            found = compare_outputs(run(each.draw.feeds), each.outputs, factor)
            if found.text:
                found = replace(found, text=f"{found.text} (on {each.draw.name})")
            worst = worst.worse(found)
        return replace(worst, draws=len(self.checked))

    def rare_differences(self, run: Run) -> dict[str, str]:
        """By rare draw, what differs; draws on which nothing does are left out."""
        found = {c.draw.name: compare_outputs(run(c.draw.feeds), c.outputs) for c in self.rare}
        return {name: each.text for name, each in found.items() if each.text}

    def check_library(
        self, compiled: Runs, order: Sequence[str], factor: float = 1.0
    ) -> Difference:
        """Compare a library's outputs on every draw, and its intermediate values on the first.

        The latter are compared if it is `Observable`. ``order`` is that of its inputs; ``factor``
        multiplies every allowance.
        """
        found = self.check(lambda feeds: compiled.outputs([feeds[n] for n in order]), factor)
        if not isinstance(compiled, Observable):
            return found
        inside = check_taps(compiled, [self.feeds[name] for name in order], self.taps, factor)
        if found.text and inside.text:
            return replace(found, text=f"{found.text}; the first value inside: {inside.text}")
        return found.worse(inside)

    def worst_draw(self, run: Run) -> Draw:
        """The draw on which a function's outputs are worst."""
        away = [compare_outputs(run(c.draw.feeds), c.outputs).allowances for c in self.checked]
        return self.checked[int(np.argmax(away))].draw

    def write(self, directory: Path) -> None:
        """Write the reference into ``directory``: the same bytes for the same content."""
        arrays: list[np.ndarray] = []

        def kept(each: Expected) -> str:
            arrays.extend([each.values, each.noise])
            return each.name

        draws = []
        for checked in self.checked:
            arrays.extend(checked.draw.feeds.values())
            outputs = [kept(each) for each in checked.outputs]
            draws.append([checked.draw.name, list(checked.draw.feeds), outputs])
        values = {tap.expected.name: tap.expected for tap in self.taps}
        inside = [kept(each) for each in values.values()]
        taps = [
            [*tap.site, inside.index(tap.expected.name), tap.restored, tap.stepped]
            for tap in self.taps
        ]
        index = {"notes": self.notes, "draws": draws, "inside": inside, "taps": taps}
        text = np.frombuffer(json.dumps(index).encode(), np.uint8)
        np.savez(directory / FILE, text, *arrays)

    @classmethod
    def read(cls, directory: Path) -> Reference:
        """Read a reference that `write` wrote.

        Raises
        ------
        InputError
            If the file is missing or damaged.
        """
        path = directory / FILE
        try:
            with np.load(path, allow_pickle=False) as content:
                text, *arrays = [content[name] for name in content.files]
            index, left = json.loads(text.tobytes()), iter(arrays)

            def expected(names: list[str]) -> list[Expected]:
                return [Expected(name, next(left), next(left)) for name in names]

            checked = []
            for name, inputs, outputs in index["draws"]:
                feeds = {each: next(left) for each in inputs}
                checked.append(Checked(Draw(name, feeds), expected(outputs)))
            inside = expected(index["inside"])
            taps = [
                Tap(Site(kernel, call, tuple(shape), tuple(axes)), inside[number], *judged)
                for kernel, call, shape, axes, number, *judged in index["taps"]
            ]
            return cls(checked, index["notes"], taps)
        except Exception as error:  # noqa: BLE001 (zipfile, zlib and numpy raise many classes)
            raise InputError(
                f"{path} cannot be read ({error}): import the model again, with "
                "`fewtune run MODEL --force` or `dvc repro --force import_model@MODEL`"
            ) from None
