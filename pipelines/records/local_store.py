"""MLflow's SQLite file, made whole or not at all.

MLflow makes its tables one by one in a second or two, and cannot use a file in which a killed
process has made only some of them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
from pathlib import Path

_SQLITE = "sqlite:///"


def local_file(uri: str) -> Path | None:
    """The file of a store that is one."""
    path = uri.removeprefix(_SQLITE).partition("?")[0]
    return Path(path) if uri.startswith(_SQLITE) and path else None


def make_whole(path: Path) -> None:
    """Make a file in which MLflow finds all its tables, unless it holds runs already.

    A file that holds no run and that MLflow cannot open is replaced.
    """
    if path.exists() and _has_runs(path):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        made = Path(folder) / path.name
        if path.exists():
            # A copy is opened: MLflow keeps using a file that it has opened under a name.
            copy = Path(folder) / "copy.db"
            shutil.copyfile(path, copy)
            if not _opens(copy):
                _open(made)
                os.replace(made, path)
            return
        _open(made)
        # If another process was faster, its file may hold runs already.
        with contextlib.suppress(FileExistsError):
            os.link(made, path)


def _has_runs(path: Path) -> bool:
    """Whether a file holds recorded runs; True also where it cannot be read."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
            if not tables:
                return False
            return "runs" in tables and bool(
                database.execute("SELECT EXISTS (SELECT 1 FROM runs)").fetchone()[0]
            )
    except sqlite3.Error:
        # It is no database, or one in use: this software must not replace it.
        return True


def _opens(path: Path) -> bool:
    try:
        _open(path)
    except Exception:  # noqa: BLE001 (SQLAlchemy's and MLflow's errors alike)
        return False
    return True


def _open(path: Path) -> None:
    """Open a file with MLflow, which makes the missing tables."""
    from mlflow import MlflowClient

    MlflowClient(tracking_uri=f"{_SQLITE}{path}").get_experiment("0")
