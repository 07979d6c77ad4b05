"""Search strategies: each proposes batches of schedules for one task, and learns how they fared.

A strategy sees the task's search space, what was measured so far, the cost model and the predictor;
it knows nothing of workers or devices, so that it runs on a recorded log as well as on a machine.
"""

from __future__ import annotations

from fewtune.options import TuneOptions
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.search.adaptive import AdaptiveSampling
from fewtune.search.annealing import SimulatedAnnealing
from fewtune.search.evolutionary import EvolutionarySearch
from fewtune.search.metaschedule import NativeSearch
from fewtune.search.predictor_guide import Guide
from fewtune.search.random_search import RandomSearch
from fewtune.search.scorer import Proposal, Scorer
from fewtune.search.strategy import Explorer, Knowledge, remade

_STRATEGIES: dict[str, type[Explorer]] = {
    "evolutionary": EvolutionarySearch,
    "annealing": SimulatedAnnealing,
    "adaptive": AdaptiveSampling,
    "random": RandomSearch,
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
    return _STRATEGIES[options.strategy](space, knowledge, options, seed)


__all__ = ["Explorer", "Guide", "Knowledge", "Proposal", "Scorer", "make_strategy", "remade"]
