"""Search strategies: each proposes batches of candidates for one task.

A strategy sees the task's design spaces, what was measured so far, and the cost model; it knows
nothing of workers or devices, so that it runs on a recorded log as well as on a machine.
"""

from __future__ import annotations

from typing import Protocol

from fewtune.tuning.measure import Outcome
from fewtune.tuning.options import TuneOptions
from fewtune.tvm_runtime import ms, tvm


class Search(Protocol):
    """What the tuning loop asks of a strategy."""

    def propose(self) -> list[ms.search_strategy.MeasureCandidate]:
        """The next batch; empty when the space is exhausted."""

    def learn(
        self, candidates: list[ms.search_strategy.MeasureCandidate], outcomes: list[Outcome]
    ) -> None:
        """Take in how the batch fared."""

    def close(self) -> None:
        """Free what the search holds."""


class EvolutionarySearch:
    """MetaSchedule's evolutionary search, its population in proportion to the batch.

    Parameters
    ----------
    name : str
    module : IRModule
        The task's workload.
    target : Target
    database : Database
        Records of the task; the search starts from the best of them.
    cost_model : CostModel
    options : TuneOptions
    threads : int
        Threads of the search itself.
    seed : int
        From 1 on.
    """

    def __init__(
        self,
        name: str,
        module: tvm.IRModule,
        target: tvm.target.Target,
        database: ms.database.Database,
        cost_model: ms.cost_model.CostModel,
        options: TuneOptions,
        threads: int,
        seed: int,
    ) -> None:
        strategy = ms.search_strategy.EvolutionarySearch(
            population_size=max(options.population, options.batch_size),
            init_min_unmeasured=min(32, max(options.population, options.batch_size) // 2),
            genetic_num_iters=options.generations,
        )
        self._context = ms.TuneContext(
            mod=module,
            target=target,
            space_generator="post-order-apply",
            search_strategy=strategy,
            task_name=name,
            rand_state=seed,
            num_threads=threads,
        )
        self._cost_model = cost_model
        self._context.pre_tuning(
            # The loop keeps the budget; this bound must only never be met before it.
            max_trials=1_000_000,
            num_trials_per_iter=options.batch_size,
            design_spaces=self._context.generate_design_space(),
            database=database,
            cost_model=cost_model,
        )

    def propose(self) -> list[ms.search_strategy.MeasureCandidate]:
        return list(self._context.generate_measure_candidates() or [])

    def learn(
        self, candidates: list[ms.search_strategy.MeasureCandidate], outcomes: list[Outcome]
    ) -> None:
        results = [outcome.as_runner_result() for outcome in outcomes]
        self._context.notify_runner_results(candidates, results)

    def teach(
        self, candidates: list[ms.search_strategy.MeasureCandidate], outcomes: list[Outcome]
    ) -> None:
        """Train the cost model on measured candidates."""
        results = [outcome.as_runner_result() for outcome in outcomes]
        self._cost_model.update(self._context, candidates, results)

    def close(self) -> None:
        self._context.post_tuning()
