"""The stages in the order to run them, as DVC defines them: no stage or edge is named here.

The axes of a stage's matrix say what it is for. Stages with a model and a strategy make a result.
Stages with a model alone that no result needs join the results of that model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import networkx as nx

from fewtune.errors import InputError
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
        The result it belongs to; ``None`` for a stage without a matrix.
    needs : tuple of str
        Stages whose outputs it reads.
    outputs : tuple of Path
    always : bool
        Whether it runs even if nothing changed: DVC then compares its outputs.
    pulled : mapping from Path to str
        Files that it reads and no stage makes, with the ``.dvc`` file by which they are pulled.
    """

    name: str
    result: Result | None
    needs: tuple[str, ...]
    outputs: tuple[Path, ...]
    always: bool = False
    pulled: Mapping[Path, str] = field(default_factory=dict)

    def missing(self) -> str:
        """Its missing inputs, and what to do, in one line; empty if none is missing."""
        lost = [name for path, name in self.pulled.items() if not path.exists()]
        if not lost:
            return ""
        files = ", ".join(name.removesuffix(".dvc") for name in lost)
        verb = "is" if len(lost) == 1 else "are"
        return f"{files} {verb} missing: `dvc pull {' '.join(lost)}` brings it here"


@dataclass(frozen=True)
class Plan:
    """The stages of one run.

    Attributes
    ----------
    stages : tuple of Stage
        In the order to run them.
    presumed : mapping from str to tuple of str
        For a stage that joins results: stages outside the plan whose outputs it reads, which must
        be up to date.
    left_out : mapping from str to tuple of str
        Stages that join results, with the stages that have yet to run for them.
    """

    stages: tuple[Stage, ...]
    presumed: dict[str, tuple[str, ...]]
    left_out: dict[str, tuple[str, ...]]

    def ends(self) -> dict[str, Result]:
        """The last stage of each result and join, with its result."""
        last = {stage.result: stage.name for stage in self.stages if stage.result}
        inner = {need for stage in self.stages for need in stage.needs}
        return {
            name: result for result, name in last.items() if result.strategy or name not in inner
        }


class Dag:
    """The pipeline's graph, an edge from a stage to each that needs its outputs.

    Parameters
    ----------
    stages : iterable of Stage
    """

    def __init__(self, stages: Iterable[Stage]) -> None:
        self.stages = {stage.name: stage for stage in stages}
        self._place = {name: place for place, name in enumerate(self.stages)}
        self.graph: nx.DiGraph[str] = nx.DiGraph()
        self.graph.add_nodes_from(self.stages)
        for stage in self.stages.values():
            self.graph.add_edges_from((need, stage.name) for need in stage.needs)

    @property
    def results(self) -> list[Result]:
        """Every result that the pipeline lists, in its order."""
        found = (stage.result for stage in self.stages.values() if stage.result)
        return list(dict.fromkeys(result for result in found if result.strategy))

    def upstream(self, names: Iterable[str]) -> set[str]:
        """The stages of ``names`` and all that they need."""
        found = set(names)
        for name in list(found):
            found |= nx.ancestors(self.graph, name)
        return found

    def ordered(self, names: Iterable[str]) -> list[str]:
        """Topological order; among stages that do not need each other, that of the file."""
        chosen = self.graph.subgraph(names)
        return list(nx.lexicographical_topological_sort(chosen, key=self._place.__getitem__))

    def plan(self, wanted: Sequence[Result]) -> Plan:
        """The stages that make ``wanted``, one result after the other, and what joins them.

        Raises
        ------
        InputError
            If the pipeline has no such result.
        """
        known = self.results
        for result in wanted:
            if result not in known:
                raise _unknown(result, known)
        order: dict[str, None] = {}
        presumed: dict[str, tuple[str, ...]] = {}
        left_out: dict[str, tuple[str, ...]] = {}
        targets = {
            name for name, stage in self.stages.items() if stage.result and stage.result in wanted
        }
        planned = self.upstream(targets)
        for model in dict.fromkeys(result.model for result in wanted):
            for result in (result for result in wanted if result.model == model):
                own = [name for name, stage in self.stages.items() if stage.result == result]
                order.update(dict.fromkeys(self.ordered(self.upstream(own))))
            for name in self._joins(model):
                outside = self.ordered(self.upstream([name]) - planned - {name})
                missing = [need for need in outside if not self._present(need)]
                if missing:
                    left_out[name] = tuple(missing)
                else:
                    presumed[name] = tuple(outside)
                    order[name] = None
                    planned.update([name, *outside])
        return Plan(tuple(self.stages[name] for name in order), presumed, left_out)

    def _joins(self, model: str) -> list[str]:
        """Stages of ``model`` alone that read what its results wrote, in topological order."""
        alone = [name for name, stage in self.stages.items() if stage.result == Result(model)]
        made = {name for name, stage in self.stages.items() if _is_result(stage, model)}
        return self.ordered(name for name in alone if self.upstream([name]) & made)

    def _present(self, name: str) -> bool:
        return all(output.exists() for output in self.stages[name].outputs)


def _is_result(stage: Stage, model: str) -> bool:
    return stage.result is not None and bool(stage.result.strategy) and stage.result.model == model


def _unknown(result: Result, known: Sequence[Result]) -> InputError:
    models = list(dict.fromkeys(each.model for each in known))
    if result.model not in models:
        hint = nearest(result.model, models, "listed")
        return InputError(f"model {result.model!r} is not listed in params.yaml{hint}")
    strategies = [each.strategy for each in known if each.model == result.model]
    hint = nearest(result.strategy, strategies, "listed")
    return InputError(f"strategy {result.strategy!r} is not listed in params.yaml{hint}")
