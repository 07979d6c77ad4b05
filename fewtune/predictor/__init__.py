"""Predicts the speed of a contraction's schedule from its decisions alone."""

from __future__ import annotations

import hashlib
from pathlib import Path

# Choices other than a path: a predictor that comes with the library, or none.
AUTO, NEVER = "auto", "never"
# The analytic model, which needs no file.
PREDEFINED = "predefined"
# The data type of products of floats; those of bytes are summed in int32.
FLOATS = "float32"
# Names the folder of what was learnt here, by machine; an empty value: nothing is kept.
LEARNT_FOLDER = "FEWTUNE_LEARNT_FOLDER"
# Endings of a predictor's files.
TREES, CONDITIONS = ".ubj", ".json"
_DATA = Path(__file__).parent / "data"


def shipped() -> list[Path]:
    """The predictors that come with the library, by name: paths without their ending."""
    return sorted(file.with_suffix("") for file in _DATA.glob(f"*{CONDITIONS}"))


def files_of(path: Path) -> tuple[Path, Path]:
    """The files of a predictor, whose path has no ending: trees and conditions."""
    return path.with_name(path.name + TREES), path.with_name(path.name + CONDITIONS)


def digest(content: bytes) -> str:
    """A digest of a predictor's trees: sixteen hex digits."""
    return hashlib.sha256(content).hexdigest()[:16]


def chosen_digest(choice: str) -> str | None:
    """The digest of the predictors that a choice may mean; None for `NEVER`."""
    if choice == NEVER:
        return None
    if choice == PREDEFINED:
        return digest(PREDEFINED.encode())
    trees = [files_of(path)[0] for path in (shipped() if choice == AUTO else [Path(choice)])]
    there = [file.read_bytes() for file in trees if file.is_file()]
    return digest(b"".join(there)) if there else None
