"""Which code measures: the commit of the checkout that a stage runs in."""

from __future__ import annotations

import subprocess
from pathlib import Path

# What using the software changes, and what it writes, is none of its code.
_FOLDERS = ("bank", "logs", "metrics", "models", "predictors", "results")
_USED = tuple(f":!{name}" for name in ("params.yaml", "dvc.lock", *_FOLDERS))


def commit(root: Path = Path()) -> str | None:
    """The commit that is checked out, ``+`` after it where code differs; None outside of git.

    Parameters
    ----------
    root : Path
        The checkout; stages run there.
    """
    name = _git(root, "rev-parse", "--short=10", "HEAD")
    if not name:
        return None
    changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", *_USED)
    return f"{name}+" if changed else name


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
