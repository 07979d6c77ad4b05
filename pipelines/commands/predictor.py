"""Predictors: trained anew, listed, described (``fewtune predictor``).

Models have to be tuned in full: their logs are read from ``out/MODEL/full/tune``, and the predictor
learns from every task of a kind that it knows. ``--keep FILE.npz`` keeps the samples, a few hundred
kilobytes. ``--samples FILE.npz`` also learns from such a file, with or without models' logs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fewtune.artifacts import Fingerprint
from fewtune.errors import InputError
from fewtune.pipelines.checkout.project import root_if_any
from fewtune.pipelines.commands.show import show_json, tell
from fewtune.predictor import files_of, shipped
from fewtune.predictor.pretrained import read_conditions
from fewtune.stages.paths import Places
from fewtune.util.table import MISSING, Table

_SHIPPED = shipped()[0].parent


def predictor(options: argparse.Namespace) -> int:
    """Train, list or describe predictors."""
    if options.action == "train":
        train(options)
        return 0
    # Those that come with fewtune are known anywhere.
    places = Places(root_if_any() or Path())
    if options.action == "list":
        known = known_predictors(places)
        if options.json:
            show_json([{"predictor": str(path), **_told(path)} for path in known])
        else:
            predictor_table(known).print()
        return 0
    show_json(_told(predictor_called(options.name, places)))
    return 0


def _told(path: Path) -> dict[str, Any]:
    """What a predictor was trained on."""
    conditions = read_conditions(path)
    conditions.pop("features")
    return dict(sorted(conditions.items()))


def predictor_table(paths: Sequence[Path]) -> Table:
    """One row for each predictor: what it was trained on."""
    rows = []
    for path in paths:
        conditions = read_conditions(path)
        rows.append(
            [
                str(path) if path.parent != _SHIPPED else path.name,
                str(conditions.get("device", MISSING)),
                str(conditions.get("target", {}).get("mcpu", MISSING)),
                str(conditions["lanes"]),
                str(conditions["threads"]),
                *(str(conditions.get(key, MISSING)) for key in ("tasks", "trials")),
            ]
        )
    headings = ["predictor", "trained on", "CPU", "lanes", "threads", "tasks", "trials"]
    return Table(headings, rows, frozenset({0, 1, 2}))


def known_predictors(places: Places) -> list[Path]:
    """The predictors that come with the library, and those of the checkout; without endings."""
    own = sorted(file.with_suffix("") for file in places.predictors.glob("*.json"))
    return [*shipped(), *own]


def predictor_called(name: str, places: Places) -> Path:
    """A predictor by its name or its path without an ending.

    Raises
    ------
    InputError
        If there is none.
    """
    known = known_predictors(places)
    for path in known:
        if name in (path.name, str(path)):
            return path
    if files_of(Path(name))[1].is_file():
        return Path(name)
    names = ", ".join(path.name for path in known)
    raise InputError(f"there is no predictor {name}: give {names}, or a path without its ending")


def train(options: argparse.Namespace) -> None:
    """Train a predictor, and write it."""
    from fewtune.search.warm_start import Tuned
    from fewtune.search.warm_start import train as trained

    places = Places()
    pretrained = trained(
        {name: Tuned(places.tasks(name), places.tuned(name, "full")) for name in options.models},
        Fingerprint.read(places.fingerprint) if options.models else None,
        [Path(file) for file in options.samples],
        None if options.keep is None else Path(options.keep),
    )
    pretrained.write(Path(options.output))
    conditions = pretrained.conditions
    tell(f"{options.output}: {conditions['trials']} trials of {conditions['tasks']} tasks")
