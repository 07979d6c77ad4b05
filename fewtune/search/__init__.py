"""Search strategies: each proposes batches of schedules for one task, and learns from their times.

A strategy sees the task's search space, its measurements, the cost model and the predictor. It
knows nothing of workers or devices, so that it also runs on a recorded log.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from pkgutil import resolve_name

from fewtune.errors import InputError
from fewtune.options import STRATEGIES, STRATEGY_GROUP, TuneOptions
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.search.predictor_guide import Guide
from fewtune.search.scorer import Proposal, Scorer
from fewtune.search.strategy import Explorer, Knowledge, remade


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
    """
    own = STRATEGIES.get(options.strategy)
    kind = resolve_name(own) if own else registered_strategy(options.strategy)
    return kind(space, knowledge, options, seed)


def registered_strategy(name: str) -> type[Explorer]:
    """A strategy of another package, which registers it as an entry point.

    Parameters
    ----------
    name : str
        Of an entry point in the group `fewtune.options.STRATEGY_GROUP`.

    Raises
    ------
    InputError
        If it cannot be loaded, or is no `Explorer`.
    """
    found = entry_points(group=STRATEGY_GROUP, name=name)
    for entry in found:
        try:
            kind = entry.load()
        except (ImportError, AttributeError) as fault:
            raise InputError(
                f"search strategy {name!r} ({entry.value}) cannot be loaded: {fault}"
            ) from None
        if isinstance(kind, type) and issubclass(kind, Explorer):
            return kind
        raise InputError(f"search strategy {name!r} ({entry.value}) is no subclass of Explorer")
    raise InputError(f"search strategy {name!r} is not installed: install its package again")


__all__ = ["Explorer", "Guide", "Knowledge", "Proposal", "Scorer", "make_strategy", "remade"]
