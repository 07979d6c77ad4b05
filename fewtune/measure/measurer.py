"""Build and measure candidates of one task through a worker pool."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fewtune.measure.checking import CHECK_LIMIT_S, Checking
from fewtune.runtime.tvm import ms, tvm
from fewtune.schedule_check.check import ScheduleCheck, Verdict
from fewtune.timing.buffers import Specs
from fewtune.timing.timer import Measured, Race
from fewtune.trial.outcome import Built, Failure, Outcome, RequestFailedError, WorkerLostError
from fewtune.trial.phases import Phases
from fewtune.workers.pool import WorkerPool
from fewtune.workers.worker import Worker


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

    def settle(self, failures: Counter[str]) -> list[Outcome]:
        """Count the failures, by cause; return the outcomes in the order of the batch."""
        outcomes = [self._ended[place] for place in range(len(self._ended))]
        failures.update(outcome.cause for outcome in outcomes if outcome.cause)
        return outcomes


def module_specs(module: tvm.IRModule) -> Specs:
    """Shapes and dtypes of the buffers of a module's ``main``."""
    arguments = ms.arg_info.ArgInfo.from_prim_func(module["main"])
    return [([int(extent) for extent in info.shape], str(info.dtype)) for info in arguments]


@dataclass
class Measurer:
    """Builds a batch on all workers and races its candidates one at a time.

    On a CPU, building and measuring would share the cores, so one follows the other: two builds
    slow a kernel of two threads by half, and unevenly.

    Parameters
    ----------
    pool : WorkerPool
    overlap : bool
        Measure a candidate as soon as it is built, while others build: for a device of its own.
    cold_weights : bool
        Every measured call finds its weights in memory, as in a model whose weights outgrow the
        cache (`fewtune.timing.cache_state`).
    checking : Checking
        Which candidates' outputs are compared with what their tasks compute.

    Attributes
    ----------
    most_flops_s : float
        Operations a second of multiply-adds; infinite where unknown.
    """

    pool: WorkerPool
    overlap: bool = False
    cold_weights: bool = False
    checking: Checking = field(default_factory=Checking)
    phases: Phases = field(default_factory=Phases)
    failures: Counter[str] = field(default_factory=Counter)
    most_flops_s: float = float("inf")
    _prepared: set[str] = field(default_factory=set)

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
            The race of each: candidates of different tasks do not race against each other. All are
            in one race unless given.
        checks : sequence of ScheduleCheck, optional
            The check of each. A candidate with wrong outputs has failed.

        Returns
        -------
        outcomes : list of Outcome
            In the order of ``modules``.
        """
        # All are in one new race, which no later call continues.
        races = [object()] * len(modules) if races is None else races
        payload = [tvm.ir.save_json(module) for module in modules]
        return self._measured_batch(payload, Batch(specs, best_s, races, checks))

    def _measured_batch(self, payload: list[str], batch: Batch) -> list[Outcome]:
        """Build and race a batch of modules in TVM JSON; see `measure`."""
        if self.overlap:
            return self._overlapped(payload, batch)
        with self.phases.timed("build_s"):
            built = self.pool.build(payload)
        self._prepare(batch.checks or ())
        for place, result in enumerate(built):
            bar_s = batch.bar_s(place)
            outcome, result = self._race(result, payload[place], batch.specs[place], bar_s)
            if isinstance(result, Built):
                outcome = self._checked(outcome, result, batch, place)
            batch.end(place, outcome)
        outcomes = batch.settle(self.failures)
        with self.phases.timed("build_s"):
            self.pool.tidy()
        return outcomes

    def _overlapped(self, payload: list[str], batch: Batch) -> list[Outcome]:
        started, checked_s = time.perf_counter(), self.phases.check_s
        device_s = self.pool.device_s

        def measurement(place: int, number: int) -> tuple[Any, ...]:
            race = Race(batch.bar_s(place), cold_weights=self.cold_weights)
            return Worker.measure, number, batch.specs[place], race

        def done(place: int, built: Built | Failure, measured: Measured | None) -> None:
            if isinstance(built, Failure):
                batch.end(place, Outcome.failed(built))
            elif measured is not None:
                # Its worker is idle, and so is the device.
                outcome = Outcome(measured.run_s)
                batch.end(place, self._checked(outcome, built, batch, place))

        self.pool.run(payload, done, measurement)
        self.pool.tidy()
        device_s = self.pool.device_s - device_s
        self.phases.run_s += device_s
        elapsed_s = time.perf_counter() - started
        self.phases.build_s += elapsed_s - device_s - (self.phases.check_s - checked_s)
        return batch.settle(self.failures)

    def _race(
        self, result: Built | Failure, payload: str, specs: Specs, bar_s: float | None
    ) -> tuple[Outcome, Built | Failure]:
        """The outcome, and the measured build: a new one if the worker had lost the first."""
        if isinstance(result, Failure):
            return Outcome.failed(result), result
        if not self._lives(result):
            # The worker died under an earlier candidate and took this one's code along.
            started = time.perf_counter()
            rebuilt = self.pool.build([payload])[0]
            self.phases.build_s += time.perf_counter() - started
            if isinstance(rebuilt, Failure):
                return Outcome.failed(rebuilt), rebuilt
            result = rebuilt
        with self.phases.timed("run_s"):
            try:
                return Outcome(self._measured(result, specs, bar_s)), result
            except (WorkerLostError, RequestFailedError) as fault:
                return Outcome.failed(Failure.of(fault, running=True)), result

    def _checked(self, outcome: Outcome, built: Built, batch: Batch, place: int) -> Outcome:
        """The outcome, after the check of its outputs if that is due."""
        if batch.checks is None:
            return outcome
        wanted, bar_s = batch.checks[place], batch.bar_s(place)
        with self.phases.timed("check_s"):
            ask = partial(self._verdict, built, wanted)
            return self.checking.checked(outcome, ask, wanted, bar_s)

    def _prepare(self, checks: Sequence[ScheduleCheck]) -> None:
        """Compute the references of new tasks on all workers at a time.

        Compiling a default kernel takes 0.15 s on one core; checks follow each other, and the other
        cores would be idle meanwhile. The reference of a default schedule is its own output.
        """
        new = {check.key: check for check in checks if check.key not in self._prepared}
        self._prepared |= new.keys()
        waiting = [check for check in new.values() if not check.is_default]
        if not waiting or not self.checking.is_on:
            return

        def prepare(place: int) -> None:
            for wanted in waiting[place :: len(self.pool.handles)]:
                # What cannot be computed is reported by the check itself.
                with suppress(WorkerLostError, RequestFailedError):
                    self.pool.handles[place].call(CHECK_LIMIT_S, Worker.prepare, wanted)

        with self.phases.timed("check_s"), ThreadPoolExecutor() as threads:
            list(threads.map(prepare, range(len(self.pool.handles))))

    def _verdict(self, built: Built, wanted: ScheduleCheck) -> Verdict:
        """What the worker that has a build says about its outputs."""
        handle = self.pool.handles[built.worker]
        return handle.call(CHECK_LIMIT_S, Worker.check, built.number, wanted)

    def _lives(self, built: Built) -> bool:
        return not self.pool.handles[built.worker].lost_since(built)

    def _measured(self, built: Built, specs: Specs, bar_s: float | None) -> list[float]:
        measured = self.pool.handles[built.worker].call(
            self.pool.options.run_timeout_s,
            Worker.measure,
            built.number,
            specs,
            Race(bar_s, cold_weights=self.cold_weights),
        )
        self.most_flops_s = measured.most_flops_s or self.most_flops_s
        return measured.run_s
