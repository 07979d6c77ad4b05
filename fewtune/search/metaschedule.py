"""MetaSchedule's own evolutionary search, in C++, driven batch by batch.

It is for users who want TVM's own search. It also separates the gain of our tuning loop from the
gain of our search. It starts from random points. It may end in
a segmentation fault (apache/tvm #17934); the task is then left out.
"""

from __future__ import annotations

import math

from fewtune.runtime.tvm import ms
from fewtune.search.cost_model import THREADS
from fewtune.search.scorer import Proposal
from fewtune.search.strategy import Explorer

# The sizes of its population, and its generations for each batch.
_POPULATION, _GENERATIONS = 64, 2


class NativeSearch(Explorer):
    """TVM's ``EvolutionarySearch`` behind the interface of a strategy."""

    # TVM's search rates candidates with its own features.
    guide = None
    _context: ms.TuneContext | None = None

    def propose(self, count: int) -> list[Proposal]:
        context = self._started()
        schedules = [each.sch for each in context.generate_measure_candidates() or []]
        points = [self.space.read(schedule.trace) for schedule in schedules]
        return [Proposal(s, p) for s, p in zip(schedules, points, strict=True) if p][:count]

    def learn(self, proposals: list[Proposal], times_s: list[float]) -> None:
        super().learn(proposals, times_s)
        if self._context is None:
            return
        for proposal, time_s in zip(proposals, times_s, strict=True):
            self._commit(proposal.schedule.trace, time_s)
        candidates = [self.space.candidate(proposal.schedule) for proposal in proposals]
        results = [
            ms.runner.RunnerResult([t], None)
            if math.isfinite(t)
            else ms.runner.RunnerResult(None, "failed")
            for t in times_s
        ]
        self._context.notify_runner_results(candidates, results)

    def _started(self) -> ms.TuneContext:
        if self._context is not None:
            return self._context
        size = max(_POPULATION, self.options.batch_size)
        self._context = ms.TuneContext(
            mod=self.space.module,
            target=self.space.target,
            space_generator="post-order-apply",
            search_strategy=ms.search_strategy.EvolutionarySearch(
                population_size=size,
                init_min_unmeasured=min(32, size // 2),
                genetic_num_iters=_GENERATIONS,
            ),
            task_name="main",
            rand_state=int(self.random.integers(1, 2**30)),
            num_threads=THREADS,
        )
        self._database = ms.database.MemoryDatabase()
        self._workload = self._database.commit_workload(self.space.module)
        # What an earlier run measured.
        for point, time_s in self.times_s.items():
            made = self.space.make(point)
            if made.schedule is not None:
                self._commit(made.schedule.trace, time_s)
        self._context.pre_tuning(
            # The tuning loop keeps the budget; this bound must never be reached.
            max_trials=1_000_000,
            num_trials_per_iter=self.options.batch_size,
            design_spaces=self._context.generate_design_space(),
            database=self._database,
            cost_model=self.scorer.cost_model,
        )
        return self._context

    def _commit(self, trace: object, time_s: float) -> None:
        if math.isfinite(time_s):
            given = trace, self._workload, [time_s], self.space.target, self.space.arguments
            self._database.commit_tuning_record(ms.database.TuningRecord(*given))
