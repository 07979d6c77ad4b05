"""Remembers in a file which results are in MLflow, since loading MLflow takes four seconds.

A changed result, another store, or another file of the same store counts as not recorded.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from fewtune.errors import InputError, masked
from fewtune.pipelines.checkout import environment
from fewtune.pipelines.dvc_repo.dag import Result
from fewtune.pipelines.dvc_repo.dvc_lock import DvcLock
from fewtune.stages.paths import Places
from fewtune.util.files import canonical_json, write_text


def is_recorded(root: Path, result: Result) -> bool:
    """Whether exactly this result was recorded in the present store."""
    return _read(root).get(str(result)) == _identity(root, result)


def remember(root: Path, result: Result) -> None:
    """Note that a result is recorded."""
    # If this fails, the store is searched next time.
    with contextlib.suppress(OSError):
        write_text(
            _file(root), canonical_json({**_read(root), str(result): _identity(root, result)})
        )


def _file(root: Path) -> Path:
    return Places(root).scratch / "recorded.json"


def _read(root: Path) -> dict[str, str]:
    try:
        content = json.loads(_file(root).read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _identity(root: Path, result: Result) -> str:
    """The result and the store as text; empty if there is no such result."""
    places = Places(root)
    made = places.benchmarked(result.model, result.strategy)
    try:
        key = DvcLock(root).key(made if result.strategy else places.compared(result.model))
    except InputError:
        return ""
    uri = os.environ.get("MLFLOW_TRACKING_URI") or environment.default_tracking_uri(root)
    file = environment.local_file(uri)
    inode = file.stat().st_ino if file is not None and file.exists() else "missing"
    # An address may hold a password.
    return f"{key} {masked(uri)} {inode}"
