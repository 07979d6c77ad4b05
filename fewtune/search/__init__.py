"""Search strategies: each proposes batches of schedules for one task, and learns from their times.

A strategy sees the task's search space, its measurements, the cost model and the predictor. It
knows nothing of workers or devices, so that it also runs on a recorded log.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from pkgutil import resolve_name
from typing import Any

from fewtune.errors import InputError
from fewtune.options import COST_MODEL_GROUP, STRATEGIES, STRATEGY_GROUP, TuneOptions
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.search.cost_model import BoostedTrees, CostModel
from fewtune.search.scorer import Proposal
from fewtune.search.strategy import Explorer, Knowledge


def make_strategy(
    space: SearchSpace, knowledge: Knowledge, options: TuneOptions, seed: int
) -> Explorer:
    """The strategy that ``options.strategy`` names, for one task.

    Parameters
    ----------
    space : SearchSpace
    knowledge : Knowledge
        Shared by all tasks of a run.
    options : TuneOptions
    seed : int
        Equal seeds and equal outcomes give equal proposals.

    Raises
    ------
    InputError
        If an entry point of that name cannot be loaded, or is no `Explorer`.
    """
    own = STRATEGIES.get(options.strategy)
    kind = resolve_name(own) if own else _registered(STRATEGY_GROUP, options.strategy)
    if not (isinstance(kind, type) and issubclass(kind, Explorer)):
        raise InputError(f"search strategy {options.strategy!r} is no subclass of Explorer")
    return kind(space, knowledge, options, seed)


def make_cost_model(name: str) -> CostModel:
    """The cost model that ``tune.cost_model`` names.

    Raises
    ------
    InputError
        If an entry point of that name cannot be loaded.
    """
    if name == "xgboost":
        return BoostedTrees()
    made: CostModel = _registered(COST_MODEL_GROUP, name)()
    return made


def _registered(group: str, name: str) -> Any:
    """What a package registers under a name in a group of entry points."""
    for entry in entry_points(group=group, name=name):
        try:
            return entry.load()
        except (ImportError, AttributeError) as fault:
            raise InputError(f"{name!r} ({entry.value}) cannot be loaded: {fault}") from None
    raise InputError(f"{name!r} is not installed: install its package again")


__all__ = ["CostModel", "Explorer", "Knowledge", "Proposal", "make_cost_model", "make_strategy"]
