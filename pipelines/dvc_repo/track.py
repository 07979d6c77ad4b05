"""Models' files under DVC, so that another clone can pull them.

Models with seeded weights have no files but their registration, which is in git.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fewtune.errors import quoted
from stages.paths import Places


def model_files(root: Path, models: Iterable[str]) -> list[str]:
    """The files of the models' folders without their registrations, as paths in the checkout."""
    return [
        str(path.relative_to(root))
        for registration in map(Places(root).registration, models)
        for path in sorted(registration.parent.iterdir())
        if path != registration and path.suffix != ".dvc" and not path.name.startswith(".")
    ]


def track(root: Path, files: Sequence[str]) -> str:
    """Put ``files`` under DVC, as `dvc add` does, if the checkout is a DVC repository.

    Returns
    -------
    error : str
        Why that was not possible, and what to do, in one line; empty if all is well.
    """
    if not files or not (root / ".dvc").is_dir():
        return ""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with _quiet(), Repo(str(root)) as repo:
            repo.add([str(root / file) for file in files])
    except (DvcException, OSError, sqlite3.Error) as error:
        return (
            f"the model is not under DVC ({quoted(error)}), so no other clone can pull it: "
            f"dvc add {' '.join(files)}"
        )
    return ""


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without DVC's advice about git after each file."""
    logger = logging.getLogger("dvc")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
