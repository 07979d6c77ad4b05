"""Search strategies: each proposes batches of schedules for one task, and learns how they fared.

A strategy sees the task's search space, what was measured so far, the cost model and the predictor;
it knows nothing of workers or devices, so that it runs on a recorded log as well as on a machine.
"""

from __future__ import annotations

from importlib.metadata import entry_points

from fewtune.errors import InputError
from fewtune.options import STRATEGY_GROUP, TuneOptions
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.search.adaptive import AdaptiveSampling
from fewtune.search.annealing import SimulatedAnnealing
from fewtune.search.chameleon import Chameleon
from fewtune.search.evolutionary import EvolutionarySearch
from fewtune.search.genetic import GeneticSearch
from fewtune.search.grid import GridSearch
from fewtune.search.metaschedule import NativeSearch
from fewtune.search.predictor_guide import Guide
from fewtune.search.random_search import RandomSearch
from fewtune.search.scorer import Proposal, Scorer
from fewtune.search.strategy import Explorer, Knowledge, remade
from fewtune.search.tile_rl import TileReinforcement

STRATEGIES: dict[str, type[Explorer]] = {
    "evolutionary": EvolutionarySearch,
    "annealing": SimulatedAnnealing,
    "adaptive": AdaptiveSampling,
    "random": RandomSearch,
    "grid": GridSearch,
    "genetic": GeneticSearch,
    "chameleon": Chameleon,
    "tile_rl": TileReinforcement,
    "metaschedule": NativeSearch,
}


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
    kind = STRATEGIES.get(options.strategy) or registered_strategy(options.strategy)
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
