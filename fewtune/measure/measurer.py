"""Build and measure candidates through a worker pool, and check those that may win."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock

from fewtune.runtime.tvm import ms, tvm
from fewtune.schedule_check.check import ScheduleCheck, Verdict
from fewtune.timing.timer import Race, Specs
from fewtune.trial.outcome import WRONG_OUTPUT, Built, Outcome, RequestFailedError, WorkerLostError
from fewtune.trial.phases import Phases
from fewtune.workers.pool import WorkerHandle, WorkerPool

# A task's first check may have to compile and run its kernel without any schedule.
CHECK_LIMIT_S = 120.0
# A candidate is checked if it takes at most so many times the fastest of its task so far: slower
# ones neither win nor take part in finals.
_WITHIN = 1.2
# A check that takes longer is made only of candidates that beat the fastest so far. For VGG 19's
# first product, each check copies 411 MB of weights into another layout, and all its candidates are
# about as fast, since they wait for memory.
_DEAR_S = 0.1


def is_check_due(cost_s: float, time_s: float, best_s: float | None) -> bool:
    """Whether a candidate is checked: by its task's last check, its time and the fastest's."""
    within = 1.0 if cost_s > _DEAR_S else _WITHIN
    return best_s is None or time_s <= within * best_s


@dataclass
class Batch:
    """The candidates of one batch, by their places in it.

    Parameters
    ----------
    specs : sequence of Specs
        Their buffers.
    best_s : sequence of float or None
        Seconds that each has to beat to be measured in full.
    races : sequence of hashable
        Candidates of one race also have to beat each other.
    checks : sequence of ScheduleCheck, optional
        The check of each one's outputs.
    """

    specs: Sequence[Specs]
    best_s: Sequence[float | None]
    races: Sequence[Hashable]
    checks: Sequence[ScheduleCheck] | None = None
    phases: Phases = field(init=False, default_factory=Phases)
    _fastest_s: dict[Hashable, float] = field(init=False, default_factory=dict)
    _ended: dict[int, Outcome] = field(init=False, default_factory=dict)

    def bar_s(self, place: int) -> float | None:
        """Seconds that a candidate has to beat; None if nothing is known."""
        known = [self.best_s[place], self._fastest_s.get(self.races[place])]
        return min((time_s for time_s in known if time_s is not None), default=None)

    def end(self, place: int, outcome: Outcome) -> None:
        """Take in a candidate's outcome."""
        self._ended[place] = outcome
        if outcome.run_s:
            race = self.races[place]
            fastest_s = self._fastest_s.get(race, outcome.median_s)
            self._fastest_s[race] = min(fastest_s, outcome.median_s)

    def settle(self) -> list[Outcome]:
        """The outcomes in the order of the batch."""
        return [self._ended[place] for place in range(len(self._ended))]


def module_specs(module: tvm.IRModule) -> Specs:
    """Shapes and dtypes of the buffers of a module's ``main``."""
    arguments = ms.arg_info.ArgInfo.from_prim_func(module["main"])
    return [([int(extent) for extent in info.shape], str(info.dtype)) for info in arguments]


@dataclass
class Measurer:
    """Builds a batch on all workers and races its candidates, one at a time on each device.

    On a CPU, building and measuring would share the cores, so one follows the other: two builds
    slow a kernel of two threads by half, and unevenly.

    Parameters
    ----------
    pool : WorkerPool
    overlap : bool
        Measure a candidate as soon as it is built, while others build: for devices of their own.

    Attributes
    ----------
    most_flops_s : float
        Operations a second of multiply-adds; infinite where unknown.
    """

    pool: WorkerPool
    overlap: bool = False
    phases: Phases = field(default_factory=Phases)
    most_flops_s: float = float("inf")
    # Seconds of each task's last check, by its key, without computing the right outputs.
    _check_costs_s: dict[str, float] = field(default_factory=dict)

    def measure(
        self,
        modules: Sequence[tvm.IRModule],
        specs: list[Specs],
        best_s: list[float | None],
        races: Sequence[Hashable] | None = None,
        checks: Sequence[ScheduleCheck] | None = None,
    ) -> list[Outcome]:
        """Build and race candidates.

        Parameters
        ----------
        modules : sequence of IRModule
            Scheduled modules, of one task or of several.
        specs : list of Specs
            Their buffers.
        best_s : list of float or None
            The time each has to beat to be measured in full. Within a call, an earlier
            candidate of the same race lowers it.
        races : sequence of hashable, optional
            The race of each: candidates of different tasks do not race against each other, nor do
            those of different devices. All are in one race unless given.
        checks : sequence of ScheduleCheck, optional
            The check of each. A candidate with wrong outputs has failed.

        Returns
        -------
        outcomes : list of Outcome
            In the order of ``modules``.
        """
        began_s = time.perf_counter()
        # All are in one new race, which no later call continues.
        races = [object()] * len(modules) if races is None else races
        devices = [self._device(each) for each in specs]
        batch = Batch(specs, best_s, list(zip(devices, races, strict=True)), checks)
        payload = [tvm.ir.save_json(module) for module in modules]
        if self.overlap:
            locks = [Lock() for _ in range(self.pool.devices)]

            def built(place: int, result: Built | Outcome) -> None:
                with locks[devices[place]]:
                    self._finish(batch, place, result)

            self.pool.run(payload, built)
        else:
            self._measure_in_order(payload, batch)
        self.pool.tidy()
        # Devices measure in parallel.
        spent = batch.phases.times(1 / self.pool.devices)
        spent.build_s = max(0.0, time.perf_counter() - began_s - spent.total_s())
        self.phases.add(spent)
        return batch.settle()

    def _measure_in_order(self, payload: list[str], batch: Batch) -> None:
        built = self.pool.build(payload)
        for place, result in enumerate(built):
            if isinstance(result, Built) and self.pool.handles[result.worker].lost_since(result):
                # The worker died under an earlier candidate and took this one's code along.
                (result,) = self.pool.build([payload[place]])
            self._finish(batch, place, result)

    def _finish(self, batch: Batch, place: int, built: Built | Outcome) -> None:
        """Race a candidate, and check its outputs if that is due."""
        if isinstance(built, Outcome):
            batch.end(place, built)
            return
        handle, bar_s = self._handle(batch.specs[place], built), batch.bar_s(place)
        race = Race(bar_s)
        limit_s, method = self.pool.options.run_timeout_s, handle.kind.measure
        with batch.phases.timed("run_s"):
            try:
                measured = handle.call(limit_s, method, built.number, batch.specs[place], race)
                self.most_flops_s = measured.most_flops_s or self.most_flops_s
                outcome = Outcome(measured.run_s)
            except (WorkerLostError, RequestFailedError) as fault:
                outcome = Outcome.of(fault, running=True)
        if batch.checks is not None and outcome.run_s:
            wanted = batch.checks[place]
            ask = partial(handle.call, CHECK_LIMIT_S, handle.kind.check, built.number, wanted)
            with batch.phases.timed("check_s"):
                outcome = self._checked(outcome, ask, wanted, bar_s)
        batch.end(place, outcome)

    def _checked(
        self,
        outcome: Outcome,
        ask: Callable[[], Verdict],
        wanted: ScheduleCheck,
        bar_s: float | None,
    ) -> Outcome:
        """The outcome, after the check of its outputs if that is due."""
        if not is_check_due(self._check_costs_s.get(wanted.key, 0.0), outcome.median_s, bar_s):
            return replace(outcome, is_checked=False)
        try:
            verdict = ask()
        except (WorkerLostError, RequestFailedError) as fault:
            return Outcome.of(fault, running=True)
        self._check_costs_s[wanted.key] = verdict.spent_s
        return Outcome(None, WRONG_OUTPUT, verdict.fault) if verdict.fault else outcome

    def _device(self, specs: Specs) -> int:
        """The number of the device that measures a task with such buffers."""
        return 0

    def _handle(self, specs: Specs, built: Built) -> WorkerHandle:
        """The process that measures a build."""
        return self.pool.handles[built.worker]
