"""How fast a contraction's schedule is expected to be, by its decisions alone."""

from __future__ import annotations

import hashlib
from pathlib import Path

# What can be chosen instead of a path: the predictor that comes with the library, or none.
AUTO, NEVER = "auto", "never"
SHIPPED = Path(__file__).parent / "data" / "avx512"
# What the names of a predictor's files end in.
TREES, CONDITIONS = ".ubj", ".json"


def files_of(choice: str, root: Path = Path()) -> tuple[Path, Path]:
    """The files of a predictor: trees and conditions.

    Parameters
    ----------
    choice : str
        `AUTO`, or a path without its ending.
    root : Path
        What a path is relative to.
    """
    path = SHIPPED if choice == AUTO else root / choice
    return path.with_name(path.name + TREES), path.with_name(path.name + CONDITIONS)


def digest(content: bytes) -> str:
    """What tells one predictor's trees from another's: sixteen hex digits."""
    return hashlib.sha256(content).hexdigest()[:16]


def chosen_digest(choice: str) -> str | None:
    """That of the predictor that was chosen; None where there is none."""
    if choice == NEVER:
        return None
    trees, _ = files_of(choice)
    return digest(trees.read_bytes()) if trees.is_file() else None
