"""Search strategies: each proposes batches of schedules for one task, and learns how they fared.

A strategy sees the task's search space, what was measured so far, the cost model and the predictor;
it knows nothing of workers or devices, so that it runs on a recorded log as well as on a machine.
"""

from __future__ import annotations

from fewtune.schedule.search_space import SearchSpace
from fewtune.tuning.options import TuneOptions
from fewtune.tuning.strategies.adaptive import AdaptiveSampling
from fewtune.tuning.strategies.annealing import SimulatedAnnealing
from fewtune.tuning.strategies.base import Explorer, Knowledge, remade
from fewtune.tuning.strategies.evolutionary import EvolutionarySearch
from fewtune.tuning.strategies.guide import Guide
from fewtune.tuning.strategies.judge import Proposal, Scorer
from fewtune.tuning.strategies.native import NativeSearch
from fewtune.tuning.strategies.uniform import RandomSearch

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
