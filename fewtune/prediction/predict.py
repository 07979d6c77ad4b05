"""Choose schedules without measuring: the bank's if it has one, else a predicted one.

Each schedule is built and run once, and its outputs are compared with its task's. What is right is
kept as it will be linked (`fewtune.runtime.kernel_store`). TVM may end the process that chooses by
a signal: each process chooses for a part of the tasks, and a task that TVM crashes on keeps its
default schedule. There is a process for each core: nothing is measured, so none disturbs another.

A task of another shape takes the schedule of the largest shape's task like it, when the library is
compiled (`fewtune.compile.other_shapes`): nothing is predicted for it.

A predictor rates thousands of points without making a schedule, and the best one is taken
unmeasured, after the One-Shot Tuner (Ryu et al. 2022). The best of many estimates is one that errs
upwards (the winner's curse). So only points count whose register tile the rules of
`fewtune.schedule.space.prior` know: the predictor was trained on no others.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from fewtune.artifacts import (
    Fingerprint,
    PredictedTask,
    Prediction,
    PredictReport,
    TaskTable,
)
from fewtune.bank.bank import Bank
from fewtune.errors import last_line
from fewtune.measure.device import device_of
from fewtune.options import PredictOptions
from fewtune.prediction.worth import BY_RULE, UNKNOWN, UNMEASURED_S, prediction_of, spread_of
from fewtune.predictor import AUTO, PREDEFINED, learnt
from fewtune.predictor.features import weights_outgrow_cache
from fewtune.predictor.predictor import consensus_for, predictor_for
from fewtune.process.apart import Job, at, in_step, run_each_apart
from fewtune.runtime.target import target_from_json
from fewtune.runtime.tvm import set_threads, tvm, usable_cores
from fewtune.schedule.space.design_space import Point
from fewtune.schedule.space.prior import Prior
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.schedule.space.transfer import move
from fewtune.schedule_check.check import Checker, ScheduleCheck
from fewtune.search.scorer import Guide, in_turn
from fewtune.storage.database import log_info, require_own, write_database
from fewtune.task.extract import Task, is_worth_searching, read_tasks, searched_twins
from fewtune.trial.trial import Trial, trace_key
from fewtune.workers.worker import KernelMaker

# The folder of the library of what was predicted, beside its log.
FIRST_LIBRARY = "library"
# Each process reads the tasks and the predictor, which is not worth it for fewer tasks.
_LEAST_TASKS, _MOST_PROCESSES = 3, 8
# Points of all tasks together; least and most points of one task. Heavy tasks get more.
_POINTS, _FEWEST, _MOST = 20_000, 500, 2_000
# Half of the points are drawn by rule; the rest are children of the best, in so many generations.
_GENERATIONS = 3
_PARENTS = 24
_CROSSED, _RETILED = 0.3, 0.3


def most_promising(
    space: SearchSpace,
    prior: Prior,
    guide: Guide | None,
    count: int,
    random: np.random.Generator,
) -> list[Point]:
    """Points of a task, those expected to be fastest first.

    Parameters
    ----------
    space : SearchSpace
    prior : Prior
    guide : Guide or None
        The predictor, bound to the task. Without one, the rules rate the points' register tiles.
        Without a rule either, there are no points.
    count : int
        How many points to rate.
    random : Generator
    """
    if not prior.informed:
        return []
    by_rule = count // 2 if guide else count
    drawn = list(dict.fromkeys(prior.draw(random) for _ in range(by_rule)))
    if guide is None:
        return sorted(drawn, key=lambda point: -prior.expected_speed(prior.tile_of(point)))
    rated = dict(zip(drawn, guide.expected(drawn).tolist(), strict=True))
    known = {prior.tile_of(point) for point in drawn}
    each = max(1, (count - len(drawn)) // _GENERATIONS)
    for _ in range(_GENERATIONS):
        elders = sorted(rated, key=lambda point: -rated[point])[:_PARENTS]
        born = dict.fromkeys(_child(space, prior, elders, random) for _ in range(each))
        children = [p for p in born if p not in rated and prior.tile_of(p) in known]
        if children:
            rated.update(zip(children, guide.expected(children).tolist(), strict=True))
    return sorted(rated, key=lambda point: -rated[point])


def _child(
    space: SearchSpace, prior: Prior, elders: list[Point], random: np.random.Generator
) -> Point:
    # A parent of a better rank is chosen more often.
    first = elders[int(len(elders) * random.random() ** 2)]
    kind = random.random()
    if kind < _CROSSED:
        return space.crossed(first, elders[int(random.integers(len(elders)))], random)
    if kind < _CROSSED + _RETILED:
        return prior.retiled(first, random)
    return space.changed(first, random)


# If so many points cannot be made into a schedule, or are wrong, the task keeps its default one.
_TRIED = 16
# Points that are kept beside the chosen one, for those who measure.
_KEPT = 12


class Chosen(NamedTuple):
    """The result of one task; without a trial it keeps its default schedule."""

    line: PredictedTask
    trial: Trial | None


class Choosing:
    """What all tasks of a process are chosen with.

    Raises
    ------
    InputError
        If the predictor or the bank cannot be used here.
    """

    def __init__(self, job: PredictJob) -> None:
        fingerprint, options = Fingerprint.read(job.fingerprint), job.options
        self.tasks, self._seed = read_tasks(job.tasks), options.seed
        self._target = target_from_json(fingerprint.target)
        require_own(job.bank, fingerprint)
        self._bank = Bank.read(job.bank)
        self._predictor = consensus_for(options.predictor, self._target)
        if options.predictor == AUTO:
            # No predictor may be for such vectors and threads: the analytic model is better than
            # none.
            self._predictor = self._predictor or predictor_for(PREDEFINED, self._target)
            learnt.teach(self._predictor, fingerprint, (t.info.workload for t in self.tasks))
        self.prediction = prediction_of(self._predictor, self._target)
        # Each of several processes runs kernels on one core.
        set_threads(1)
        self._maker = None
        if device_of(fingerprint).can.shared_cores:
            self._maker = KernelMaker(self._target, Checker(self._target))
        self._is_cold = weights_outgrow_cache(self.tasks)

    def chosen(self, task: Task, count: int) -> Chosen:
        """The bank's best schedule of this very task, or the first promising one.

        ``count`` points are rated. Each schedule is right.
        """
        try:
            space = SearchSpace(task.mod, self._target)
            return self._from_bank(task, space) or self._best_rated(task, space, count)
        except Exception as fault:  # noqa: BLE001 (a task that TVM fails on keeps its default)
            return default_of(task, f"no schedule could be predicted: {last_line(fault)}")

    def _from_bank(self, task: Task, space: SearchSpace) -> Chosen | None:
        if (entry := self._bank.entry(task.info.workload)) is None:
            return None
        known: dict[str, Any] = {"origin": entry.origin, "known_ms": entry.best_ms}
        if entry.best_ms > entry.fastest_ms:
            # The default schedule was faster.
            note = "the bank found none faster"
            return Chosen(_line(task, "default", spread=0.0, note=note, **known), None)
        made = move(entry.donations[:1], space)[0]
        if made.schedule is None or self._fault(task, made.schedule):
            return None
        trial = Trial(trace_key(made.schedule.trace), [entry.best_ms / 1e3], None)
        return Chosen(_line(task, "known", spread=0.0, **known), trial)

    def _best_rated(self, task: Task, space: SearchSpace, count: int) -> Chosen:
        random = np.random.default_rng([self._seed, *task.info.name.encode()])
        prior, guide = Prior(space), None
        if self._predictor is not None:
            guide = Guide.of(space, prior, self._predictor, is_cold=self._is_cold)
        points = most_promising(space, prior, guide, count, random)
        spread, note = UNKNOWN, BY_RULE
        if guide is not None:
            spread, note = spread_of(self._predictor, self._target, guide.products), ""
        fault = "no rule draws schedules for it"
        for place, point in enumerate(points[:_TRIED]):
            schedule = space.make(point, seed=place + 1).schedule
            fault = self._fault(task, schedule) if schedule else "no schedule applies"
            if schedule and not fault:
                rest = in_turn(prior, points[place + 1 :], point)[:_KEPT]
                promising = [(each.program, list(each.decisions)) for each in rest]
                line = _line(task, "predicted", spread=spread, promising=promising, note=note)
                trial = Trial(trace_key(schedule.trace), [UNMEASURED_S], None)
                return Chosen(line, trial)
        return default_of(task, fault)

    def _fault(self, task: Task, schedule: tvm.s_tir.Schedule) -> str:
        """What is wrong with a schedule's outputs; empty where it cannot run here."""
        if self._maker is None:
            return ""
        wanted = ScheduleCheck(task.info.workload, tvm.ir.save_json(task.mod))
        return self._maker.make(schedule.mod, wanted).fault


def spreads(tasks: list[Task], target: tvm.target.Target) -> dict[str, float]:
    """By task, the part of its time that measuring may save of what would be predicted."""
    predictor, found = consensus_for(AUTO, target), {}
    for task in tasks:
        found[task.info.name] = UNKNOWN
        # A task that TVM fails on is not known.
        with suppress(Exception):
            space = SearchSpace(task.mod, target)
            guide = predictor and Guide.of(space, Prior(space), predictor, is_cold=False)
            if guide:
                found[task.info.name] = spread_of(predictor, target, guide.products)
    return found


def default_of(task: Task, note: str) -> Chosen:
    """A task that keeps its default schedule, and why."""
    return Chosen(_line(task, "default", spread=UNKNOWN, note=note), None)


def _line(task: Task, status: str, **more: Any) -> PredictedTask:
    return PredictedTask.model_validate({"task": task.info.name, "status": status, **more})


class PredictJob(Job):
    """The arguments of `predict_apart`; a child gets a lot of tasks.

    Attributes
    ----------
    tasks, fingerprint : Path
        Of the model, and of the machine.
    options : PredictOptions
    directory : Path
        Gets ``predict.json``, ``log.json`` and TVM's two database files.
    model, strategy : str
        Named in the report.
    bank : Path
        What `fewtune.bank` wrote.
    lot : dict of int
        By task, the points that are rated.
    """

    tasks: Path
    fingerprint: Path
    options: PredictOptions
    directory: Path
    model: str
    strategy: str
    bank: Path
    lot: dict[str, int] = Field(default_factory=dict)

    def run(self) -> tuple[dict[str, Chosen], Prediction]:
        """Choose for a lot in this process; a task's schedule does not depend on others."""
        choosing = Choosing(self)
        wanted = [task for task in choosing.tasks if task.info.name in self.lot]
        chosen: dict[str, Chosen] = {}
        at("it was reading what it needs", optional=[task.info.name for task in wanted])
        for task in wanted:
            name = task.info.name
            if name in self.left_out:
                chosen[name] = default_of(task, self.left_out[name])
                continue
            at(f"it was predicting a schedule of {name}")
            with in_step(name):
                chosen[name] = choosing.chosen(task, self.lot[name])
        return chosen, choosing.prediction


def predict_apart(job: PredictJob, processes: int | None = None) -> PredictReport:
    """Predict a schedule of every task that is worth it, and write their log.

    Parameters
    ----------
    job : PredictJob
    processes : int, optional
        One for each core unless given, at most eight.

    Raises
    ------
    InputError
        If the predictor or the bank cannot be used here, or if native code crashes whatever is
        left out.
    MachineError
        If the system kills a process because memory ran out.
    """
    began_s = time.perf_counter()
    infos = TaskTable.read(job.tasks).tasks
    worth = [info for info in infos if is_worth_searching(info, job.options.min_share)]
    twins = searched_twins(infos, job.options.min_share)
    shares = {info.name: info.share for info in worth if info.name not in twins}
    count = min(processes or usable_cores(), _MOST_PROCESSES, max(1, len(shares) // _LEAST_TASKS))
    each_lot = [job.model_copy(update={"lot": lot}) for lot in lots(shares, count)]
    found = run_each_apart(each_lot)
    chosen = {name: each for some, _ in found for name, each in some.items()}
    fingerprint, tasks = Fingerprint.read(job.fingerprint), read_tasks(job.tasks)
    lines = [chosen[info.name].line for info in infos if info.name in chosen]
    # Marked as predicted, so that no bank, merged log or later search takes them for measured.
    marks = {"predicted": True, "checked": device_of(fingerprint).can.shared_cores}
    log_info(fingerprint).model_copy(update=marks).write(job.directory)
    trials = {name: [each.trial] for name, each in chosen.items() if each.trial is not None}
    modules = {task.info.name: task.mod for task in tasks if task.info.name in trials}
    write_database(job.directory, modules, trials, target_from_json(fingerprint.target))
    report = PredictReport(
        model=job.model,
        strategy=job.strategy,
        tasks=lines,
        prediction=found[0][1],
        predicting_s=round(time.perf_counter() - began_s, 3),
    )
    report.write(job.directory)
    return report


def lots(shares: Mapping[str, float], count: int) -> list[dict[str, int]]:
    """How many points are rated of each task, dealt so that lots take about the same time.

    Parameters
    ----------
    shares : mapping of str to float
        The part of the model's time that each task takes.
    count : int
        Of lots.
    """
    whole = sum(shares.values()) or 1.0
    points = {n: int(min(_MOST, max(_FEWEST, s / whole * _POINTS))) for n, s in shares.items()}
    dealt = sorted(points.items(), key=lambda each: (-each[1], each[0]))
    return [dict(dealt[place::count]) for place in range(count)]
