"""Build and measure candidates of one task through a worker pool."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from fewtune.measure.checking import CHECK_LIMIT_S, Checking
from fewtune.runtime.tvm import ms, tvm
from fewtune.schedule_check.check import ScheduleCheck, Verdict
from fewtune.timing.buffers import Specs
from fewtune.timing.timer import Measured, Race
from fewtune.trial.outcome import Built, Failure, Outcome, RequestFailedError, WorkerLostError
from fewtune.trial.phases import Phases
from fewtune.workers.pool import Kept, WorkerPool
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
    keys : sequence of tuple of str, optional
        Workload and trace of each.
    checks : sequence of ScheduleCheck, optional
        The check of each one's outputs.
    """

    specs: Sequence[Specs]
    best_s: Sequence[float | None]
    races: Sequence[Hashable]
    keys: Sequence[tuple[str, str]] | None = None
    checks: Sequence[ScheduleCheck] | None = None
    _fastest_s: dict[Hashable, float] = field(init=False, default_factory=dict)
    _ended: dict[int, tuple[Outcome, Built | None]] = field(init=False, default_factory=dict)

    def bar_s(self, place: int) -> float | None:
        """Seconds that a candidate has to beat; None if nothing is known."""
        known = [self.best_s[place], self._fastest_s.get(self.races[place])]
        return min((time_s for time_s in known if time_s is not None), default=None)

    def end(self, place: int, outcome: Outcome, built: Built | None) -> None:
        """Take in a candidate's outcome, and the build that was measured."""
        self._ended[place] = outcome, built
        if outcome.run_s:
            race = self.races[place]
            fastest_s = self._fastest_s.get(race, outcome.median_s)
            self._fastest_s[race] = min(fastest_s, outcome.median_s)

    def settle(self, failures: Counter[str], kept: Kept | None) -> list[Outcome]:
        """Count the failures and keep the fastest builds, in the order of the batch.

        Parameters
        ----------
        failures : Counter
            By cause; added to.
        kept : Kept, optional
            None where builds are not kept.

        Returns
        -------
        outcomes : list of Outcome
        """
        outcomes = []
        for place in range(len(self._ended)):
            outcome, built = self._ended[place]
            outcomes.append(outcome)
            if outcome.cause:
                failures[outcome.cause] += 1
            elif kept is not None and self.keys is not None and built is not None:
                kept.take(*self.keys[place], built, outcome.median_s)
        return outcomes


# Rounds of a duel, and the seconds of a candidate in each.
ROUNDS, ROUND_S = 6, 0.001
_ROUNDS_A_VISIT = 2


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

    # Boards build for themselves.
    can_build_ahead: ClassVar[bool] = True

    pool: WorkerPool
    overlap: bool = False
    cold_weights: bool = False
    checking: Checking = field(default_factory=Checking)
    phases: Phases = field(default_factory=Phases)
    failures: Counter[str] = field(default_factory=Counter)
    most_flops_s: float = float("inf")
    _prepared: set[str] = field(default_factory=set)
    _ahead: list[tuple[list[str], Future[list[Built | Failure]]]] = field(default_factory=list)
    # One thread: the pool does one thing at a time.
    _builder: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    def measure(
        self,
        modules: Sequence[tvm.IRModule],
        specs: list[Specs],
        best_s: list[float | None],
        races: Sequence[Hashable] | None = None,
        keys: Sequence[tuple[str, str]] | None = None,
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
        keys : sequence of tuple of str, optional
            Workload and trace of each, by which the fastest are kept
            (`fewtune.workers.pool`).
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
        return self._measured_batch(payload, Batch(specs, best_s, races, keys, checks))

    def _measured_batch(self, payload: list[str], batch: Batch) -> list[Outcome]:
        """Build and race a batch of modules in TVM JSON; see `measure`."""
        if self.overlap:
            return self._overlapped(payload, batch)
        with self.phases.timed("build_s"):
            built = self._built(payload)
        self._prepare(batch.checks or ())
        for place, result in enumerate(built):
            bar_s = batch.bar_s(place)
            outcome, result = self._race(result, payload[place], batch.specs[place], bar_s)
            made = result if isinstance(result, Built) else None
            if made is not None:
                outcome = self._checked(outcome, made, batch, place)
            batch.end(place, outcome, made)
        outcomes = batch.settle(self.failures, self.pool.kept)
        with self.phases.timed("build_s"):
            self.pool.tidy()
        return outcomes

    def build_ahead(self, modules: Sequence[tvm.IRModule]) -> None:
        """Build candidates while others are still searched; the next `measure` takes the builds."""
        if self.can_build_ahead and not self.overlap:
            payload = [tvm.ir.save_json(module) for module in modules]
            self._ahead.append((payload, self._builder.submit(self.pool.build, payload)))

    def _built(self, payload: list[str]) -> list[Built | Failure]:
        """Builds of modules, of which some were begun ahead."""
        ready: dict[str, Built | Failure] = {}
        for ahead, builds in self._ahead:
            ready.update(zip(ahead, builds.result(), strict=True))
        self._ahead.clear()
        rest = [text for text in payload if text not in ready]
        ready.update(zip(rest, self.pool.build(rest), strict=True))
        return [ready[text] for text in payload]

    def _overlapped(self, payload: list[str], batch: Batch) -> list[Outcome]:
        started, checked_s = time.perf_counter(), self.phases.check_s
        device_s = self.pool.device_s

        def measurement(place: int, number: int) -> tuple[Any, ...]:
            race = Race(batch.bar_s(place), cold_weights=self.cold_weights)
            return Worker.measure, number, batch.specs[place], race

        def done(place: int, built: Built | Failure, measured: Measured | None) -> None:
            if isinstance(built, Failure):
                batch.end(place, Outcome.failed(built), None)
            elif measured is not None:
                # Its worker is idle, and so is the device.
                outcome = Outcome(measured.run_s)
                batch.end(place, self._checked(outcome, built, batch, place), built)

        self.pool.run(payload, done, measurement)
        self.pool.tidy()
        device_s = self.pool.device_s - device_s
        self.phases.run_s += device_s
        elapsed_s = time.perf_counter() - started
        self.phases.build_s += elapsed_s - device_s - (self.phases.check_s - checked_s)
        return batch.settle(self.failures, None)

    def build(self, wanted: Sequence[Built | tvm.IRModule]) -> list[Built | Failure]:
        """Build candidates for duels, on all workers in parallel; those that are built stay."""
        modules = [tvm.ir.save_json(each) for each in wanted if not isinstance(each, Built)]
        with self.phases.timed("build_s"):
            built = iter(self.pool.build(modules))
        return [each if isinstance(each, Built) else next(built) for each in wanted]

    def duel(
        self,
        contestants: Sequence[Built | Failure],
        specs: Specs,
        rounds: int = ROUNDS,
        round_s: float = ROUND_S,
    ) -> list[Outcome]:
        """Measure candidates of one task in turns, to find the one that is really the fastest.

        Candidates of one worker take turns in it, and the workers take turns.

        Parameters
        ----------
        contestants : sequence of Built or Failure
            As `build` returned them.
        specs : Specs
        rounds : int
        round_s : float
            Seconds of a candidate a round; at least one call.

        Returns
        -------
        outcomes : list of Outcome
            With one sample for each round. If a worker failed, all candidates failed: a duel needs
            all of them.
        """
        outcomes = [Outcome.failed(c) if isinstance(c, Failure) else None for c in contestants]
        samples: list[list[float]] = [[] for _ in contestants]
        places: dict[int, dict[int, int]] = {}
        for place, each in enumerate(contestants):
            if isinstance(each, Built):
                places.setdefault(each.worker, {})[place] = each.number
        workers = list(places)
        with self.phases.timed("run_s"):
            for done in range(0, rounds, _ROUNDS_A_VISIT):
                workers = [*workers[1:], *workers[:1]]
                for worker in workers:
                    try:
                        taken = self.pool.handles[worker].call(
                            60 + 2 * _ROUNDS_A_VISIT,
                            Worker.duel,
                            list(places[worker].values()),
                            specs,
                            min(_ROUNDS_A_VISIT, rounds - done),
                            round_s,
                            self.cold_weights,
                        )
                    except (WorkerLostError, RequestFailedError) as fault:
                        return [Outcome.failed(Failure.of(fault, running=True))] * len(contestants)
                    for place, sample in zip(places[worker], taken, strict=True):
                        samples[place] += sample
        return [
            Outcome(sample) if outcome is None else outcome
            for outcome, sample in zip(outcomes, samples, strict=True)
        ]

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

    def check(
        self, modules: Sequence[tvm.IRModule], checks: Sequence[ScheduleCheck]
    ) -> list[Failure | None]:
        """Build candidates and compare their outputs, without measuring them.

        Parameters
        ----------
        modules : sequence of IRModule
            Scheduled.
        checks : sequence of ScheduleCheck
            The check of each.

        Returns
        -------
        failures : list of Failure or None
            None where the outputs are right.
        """
        found: list[Failure | None] = []
        for built, wanted in zip(self.build(modules), checks, strict=True):
            if isinstance(built, Built):
                with self.phases.timed("check_s"):
                    ask = partial(self._verdict, built, wanted)
                    found.append(self.checking.verdict(ask, wanted))
            else:
                found.append(built)
        self.pool.tidy()
        return found

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
