"""MLflow's SQLite file, made whole or not at all.

MLflow makes its tables one by one in a second or two, and cannot use a file in which a killed
process has made only some of them.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

_SQLITE = "sqlite:///"


def local_file(uri: str) -> Path | None:
    """The file of a store that is one."""
    path = uri.removeprefix(_SQLITE).partition("?")[0]
    return Path(path) if uri.startswith(_SQLITE) and path else None


def make_whole(path: Path) -> None:
    """Make a file in which MLflow finds all its tables, unless there is one."""
    if path.exists():
        return
    from mlflow import MlflowClient

    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        made = Path(folder) / path.name
        # MLflow makes the tables when it opens the file.
        MlflowClient(tracking_uri=f"{_SQLITE}{made}").get_experiment("0")
        # If another process was faster, its file may hold runs already.
        with contextlib.suppress(FileExistsError):
            os.link(made, path)
