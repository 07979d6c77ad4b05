"""The graph of the pipeline, read from DVC, and which of its stages DVC would run again."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dvc.exceptions import DvcException
from dvc.lock import LockError
from dvc.repo import Repo

from fewtune.errors import FewtuneError, InputError, MachineError
from pipelines.dvc_repo.dag import Dag, Result, Stage
from pipelines.dvc_repo.dvc_leftovers import mend_rwlock
from stages.paths import Places

_MODEL, _STRATEGY = "model", "strategy"


class DvcBusyError(MachineError):
    """Another DVC process holds what is needed."""


def read_dag(root: Path) -> Dag:
    """Read the graph of the pipeline at ``root``.

    Raises
    ------
    InputError
        If DVC refuses the pipeline or its parameters.
    """
    with _opened(root) as repo:
        graph = repo.index.graph
        axes = _axes(repo)
        return Dag(
            Stage(
                name=_address(stage),
                result=_result(axes.get(_address(stage), {})),
                needs=tuple(
                    sorted(_address(it) for it in graph.successors(stage) if not it.is_data_source)
                ),
                outputs=_outputs(stage),
                always=bool(getattr(stage, "always_changed", False)),
                pulled={
                    path: _address(source)
                    for source in graph.successors(stage)
                    if source.is_data_source
                    for path in _outputs(source)
                },
            )
            for stage in repo.index.stages
            # Files under DVC are no stages to run: they exist, or have to be pulled.
            if not stage.is_data_source
        )


def outdated(root: Path, names: Sequence[str]) -> list[str]:
    """Which of ``names`` DVC would run again in the present checkout.

    Raises
    ------
    DvcBusyError
        If another DVC process holds the repository.
    """
    if not names:
        return []
    mend_rwlock(root)
    with _opened(root) as repo:
        found = {_address(stage): stage for stage in repo.index.stages}
        with repo.lock:
            # A stage that always runs is not outdated by that: its readers compare its outputs.
            return [
                name
                for name in names
                if not getattr(found[name], "always_changed", False) and found[name].changed()
            ]


class _opened:  # noqa: N801 (a context manager that reads as a verb)
    """DVC's repository at a folder; its errors are raised in one line."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __enter__(self) -> Repo:
        try:
            self.repo = Repo(str(self.root))
        except (DvcException, sqlite3.Error) as error:
            raise _one_line(error) from None
        return self.repo

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.repo.close()
        if isinstance(error, LockError):
            raise DvcBusyError("another DVC process is at work here") from None
        if isinstance(error, DvcException | sqlite3.Error):
            raise _one_line(error) from None


def _one_line(error: DvcException | sqlite3.Error) -> FewtuneError:
    """DVC's exception in one line; for one of its database, the disk is at fault."""
    if isinstance(error, sqlite3.Error):
        return MachineError(
            f"DVC cannot use its database of files ({error}): free some space, or set "
            "DVC_SITE_CACHE_DIR to a folder that can be written, and run again; what was measured "
            "is kept"
        )
    cause = f": {error.__cause__}" if error.__cause__ else ""
    return InputError(f"DVC cannot read the pipeline: {' '.join(f'{error}{cause}'.split())}")


def _address(stage: Any) -> str:
    """What `dvc repro` calls the stage at the root (`Stage.addressing` is for this folder)."""
    path, name = stage.path_in_repo, getattr(stage, "name", None)
    if name is None:
        return path
    return name if path == str(Places().pipeline) else f"{path}:{name}"


def _outputs(stage: Any) -> tuple[Path, ...]:
    return tuple(Path(os.fspath(out.fspath)) for out in stage.outs)


def _axes(repo: Repo) -> dict[str, dict[str, str]]:
    """The value of each axis, by the name of the stage made for it."""
    found: dict[str, dict[str, str]] = {}
    files = {stage.path: stage.dvcfile for stage in repo.index.stages}
    for file in files.values():
        definitions = getattr(getattr(file, "resolver", None), "definitions", {})
        for definition in definitions.values():
            matrix = getattr(definition, "normalized_iterable", None) or {}
            for key, values in matrix.items():
                found[f"{definition.name}@{key}"] = {
                    axis: str(value) for axis, value in values.items()
                }
    return found


def _result(axes: dict[str, str]) -> Result | None:
    if _MODEL not in axes:
        return None
    return Result(axes[_MODEL], axes.get(_STRATEGY, ""))
