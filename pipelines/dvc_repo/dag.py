"""The stages in the order to run them, as DVC defines them: no stage or edge is named here.

The axes of a stage's matrix say what it is for. Stages with a model and a strategy make a result.
Stages with a model alone that need a result join the results of that model.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fewtune.errors import InputError, MachineError, quoted
from fewtune.pipelines.dvc_repo.mend import mend_rwlock
from fewtune.stages.paths import Places
from fewtune.util.validation import nearest


@dataclass(frozen=True, order=True)
class Result:
    """A model with a strategy; the strategy is empty for a stage that joins a model's results."""

    model: str
    strategy: str = ""

    def __str__(self) -> str:
        return f"{self.model}-{self.strategy}" if self.strategy else self.model


@dataclass(frozen=True)
class Stage:
    """One stage of the graph.

    Attributes
    ----------
    name : str
        As DVC addresses it.
    result : Result or None
        The result it belongs to; ``None`` for a stage without a model.
    needs : tuple of str
        Stages whose outputs it reads.
    always : bool
        Whether it runs even if nothing changed: DVC then compares its outputs.
    pulled : mapping from Path to str
        Files that it reads and no stage makes, with the ``.dvc`` file by which they are pulled.
    """

    name: str
    result: Result | None
    needs: tuple[str, ...] = ()
    always: bool = False
    pulled: Mapping[Path, str] = field(default_factory=dict)

    def missing(self) -> str:
        """Its missing inputs, and what to do, in one line; empty if none is missing."""
        lost = " ".join(name for path, name in self.pulled.items() if not path.exists())
        return lost and f"inputs are missing: `dvc pull {lost}` brings them here"


class Dag:
    """The pipeline's stages by name, and what they need."""

    def __init__(self, stages: Iterable[Stage]) -> None:
        self.stages = {stage.name: stage for stage in stages}
        self._place = {name: place for place, name in enumerate(self.stages)}

    @property
    def results(self) -> list[Result]:
        """Every result that the pipeline lists, in its order."""
        found = (stage.result for stage in self.stages.values() if stage.result)
        return list(dict.fromkeys(result for result in found if result.strategy))

    def ordered(self, names: Iterable[str]) -> list[str]:
        """The stages of ``names`` and all that they need, each after what it needs."""
        found: dict[str, None] = {}

        def visit(name: str) -> None:
            if name not in found:
                for need in sorted(self.stages[name].needs, key=self._place.__getitem__):
                    visit(need)
                found[name] = None

        for name in names:
            visit(name)
        return list(found)

    def needed(self, result: Result) -> list[str]:
        """The stages of a result, and all that they need, in the order to run them."""
        return self.ordered(name for name, stage in self.stages.items() if stage.result == result)

    def joins(self, model: str) -> list[str]:
        """The stages of ``model`` alone that need its results, in the order to run them."""

        def needs_result(name: str) -> bool:
            needed = (self.stages[each].result for each in self.ordered([name]))
            return any(result and result.strategy for result in needed)

        alone = Result(model)
        return [
            name
            for name in self.needed(alone)
            if self.stages[name].result == alone and needs_result(name)
        ]

    def plan(self, wanted: Sequence[Result]) -> tuple[list[Stage], dict[str, Result]]:
        """The stages that make ``wanted``, one result after the other, and what joins them.

        A join may also need results that are not wanted, which are then no part of the plan.

        Returns
        -------
        stages : list of Stage
        ends : dict from str to Result
            The last stage of each result and join, with its result.

        Raises
        ------
        InputError
            If the pipeline has no such result.
        """
        for result in wanted:
            require_listed("model", result.model, dict.fromkeys(it.model for it in self.results))
            own = [it.strategy for it in self.results if it.model == result.model]
            require_listed("strategy", result.strategy, own)
        order: dict[str, None] = {}
        ends: dict[str, Result] = {}
        for model in dict.fromkeys(result.model for result in wanted):
            made = {each: self.needed(each) for each in wanted if each.model == model}
            joins = self.joins(model)
            for result, names in (*made.items(), (Result(model), joins)):
                order.update(dict.fromkeys(names))
                if names:
                    ends[names[-1]] = result
        return [self.stages[name] for name in order], ends


def require_listed(kind: str, name: str, known: Iterable[str]) -> None:
    """Refuse a model or a strategy that params.yaml does not list."""
    known = list(known)
    if name not in known:
        hint = nearest(name, known, "listed")
        raise InputError(f"{kind} {name!r} is not listed in params.yaml{hint}")


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
        graph, results = repo.index.graph, _results(repo, root)
        return Dag(
            Stage(
                _address(stage, root),
                results.get(_address(stage, root)),
                tuple(
                    _address(it, root) for it in graph.successors(stage) if not it.is_data_source
                ),
                bool(getattr(stage, "always_changed", False)),
                {
                    Path(os.fspath(output.fspath)): _address(source, root)
                    for source in graph.successors(stage)
                    if source.is_data_source
                    for output in source.outs
                },
            )
            for stage in repo.index.stages
            # Files under DVC are no stages to run: they exist, or have to be pulled.
            if not stage.is_data_source
        )


def outdated(root: Path, names: Iterable[str]) -> set[str]:
    """Which of ``names`` DVC would run again in the present checkout.

    Raises
    ------
    DvcBusyError
        If another DVC process holds the repository.
    """
    mend_rwlock(root)
    with _opened(root) as repo:
        found = {_address(stage, root): stage for stage in repo.index.stages}
        with repo.lock:
            # A stage that always runs is not outdated by that: its readers compare its outputs.
            return {
                name
                for name in names
                if not getattr(found[name], "always_changed", False) and found[name].changed()
            }


@contextlib.contextmanager
def _opened(root: Path) -> Iterator[Any]:
    """DVC's repository at a folder; its errors are raised in one line."""
    from dvc.exceptions import DvcException
    from dvc.lock import LockError
    from dvc.repo import Repo

    try:
        with Repo(str(root)) as repo:
            yield repo
    except LockError:
        raise DvcBusyError("another DVC process is at work here") from None
    except sqlite3.Error as error:
        raise MachineError(
            f"DVC cannot use its database of files ({error}): free some space, or set "
            "DVC_SITE_CACHE_DIR to a folder that can be written, and run again; what was measured "
            "is kept"
        ) from None
    except DvcException as error:
        cause = f": {error.__cause__}" if error.__cause__ else ""
        raise InputError(f"DVC cannot read the pipeline: {quoted(f'{error}{cause}')}") from None


def _address(stage: Any, root: Path) -> str:
    """What `dvc repro` calls the stage at the root (`Stage.addressing` is for this folder)."""
    path, name = os.path.relpath(stage.path, root.resolve()), getattr(stage, "name", None)
    if name is None:
        return path
    return str(name) if path == str(Places().pipeline) else f"{path}:{name}"


def _results(repo: Any, root: Path) -> dict[str, Result]:
    """The result of each stage that a matrix with a model makes, by the stage's name.

    The DVC repository may hold pipelines of the user's own.
    """
    found = {}
    own = str(Places(root.resolve()).pipeline)
    for file in {stage.dvcfile for stage in repo.index.stages if stage.path == own}:
        for definition in file.resolver.definitions.values():
            matrix = getattr(definition, "normalized_iterable", None) or {}
            for key, axes in matrix.items():
                if "model" in axes:
                    result = Result(str(axes["model"]), str(axes.get("strategy", "")))
                    found[f"{definition.name}@{key}"] = result
    return found
