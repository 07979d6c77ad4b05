"""Strategies on real tasks, measured: the study's part that needs the processor to itself.

The eight tasks of the engine benchmark, every strategy with every way of rating candidates, the
same trials each. Seed after seed, task after task: what is complete when the budget ends counts,
and a later run goes on there. What was measured is kept in a folder (`Pool`).
"""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.comparison.strategy_rows import NOTHING
from fewtune.artifacts import Fingerprint
from fewtune.machine.fingerprint import FingerprintOptions, detect_fingerprint
from fewtune.measure.measurer import Measurer, module_specs
from fewtune.model.import_model import imported_model
from fewtune.options import ImportOptions, TuneOptions
from fewtune.predictor import AUTO
from fewtune.predictor.predictor import predictor_for
from fewtune.runtime.target import target_from_json
from fewtune.schedule.space.design_space import Point
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.search import Knowledge, Proposal, make_strategy
from fewtune.task.extract import Task, extract_tasks
from fewtune.workers.pool import WorkerPool

JUDGED = ("evolutionary", "annealing", "adaptive", "chameleon")
UNJUDGED = ("genetic", "tile_rl", "random", "grid")
COMBINATIONS = (
    *((name, "none") for name in UNJUDGED),
    *((name, judge) for name in JUDGED for judge in ("xgboost", "predictor")),
    # TVM's own search: it begins from random points and rates them by its features.
    ("metaschedule", "xgboost"),
)
MODELS = ("squeezenet", "resnet50")
BATCH = 8
_RUNS, _BLOCKS = "runs.jsonl", "blocks.jsonl"
# TVM's own search may end in a segmentation fault (apache/tvm #17934), in the same place again.
_ATTEMPTS = 2
# The last points take turns so often.
_TURNS = 3


class Run(NamedTuple):
    """One search: the best after each trial, and when that was."""

    name: str
    judge: str
    best_s: list[float]
    at_s: list[float]
    search_s: float
    point: Point | None


def model_tasks(name: str, fingerprint: Fingerprint, count: int) -> list[Task]:
    """The tasks of a model that take most of its time, by operations, of distinct forms first."""
    target, registered = target_from_json(fingerprint.target), Path(__file__).parents[2] / "models"
    made = imported_model(name, registered, target, fingerprint.threads, ImportOptions())
    tasks = extract_tasks(made.lowered)
    heavy = [task for task in tasks if task.info.flops > 1e6 and "conv2d" in task.info.name]
    heavy.sort(key=lambda task: (-task.info.flops * task.info.weight, task.info.name))
    return heavy[:count]


def engine_tasks(fingerprint: Fingerprint, a_model: int) -> list[Task]:
    """The tasks of the engine benchmark, the models taking turns."""
    each = [model_tasks(model, fingerprint, a_model) for model in MODELS]
    return [task for pair in zip(*each, strict=True) for task in pair]


def searched(pool: Pool, measurer: Measurer, name: str, judge: str, seed: int, trials: int) -> Run:
    """Let a strategy search; what it proposes is taken from the pool, or measured."""
    predictor = predictor_for(AUTO, pool.space.target) if judge == "predictor" else None
    options = TuneOptions(strategy=name, batch_size=BATCH, seed=seed, least_gain=0.0)
    best_s: list[float] = []
    at_s: list[float] = []
    fastest: tuple[float, Point | None] = (math.inf, None)
    spent_s = search_s = 0.0
    began_s = time.perf_counter()
    search = make_strategy(pool.space, Knowledge(predictor=predictor), options, seed)
    while len(best_s) < trials:
        batch = search.next_batch(min(BATCH, trials - len(best_s)))
        search_s += time.perf_counter() - began_s
        if not batch:
            break
        found = pool.measured(batch, measurer)
        for proposal, each in zip(batch, found, strict=True):
            spent_s += each.cost_s
            if each.time_s < fastest[0]:
                fastest = (each.time_s, proposal.point)
            best_s.append(fastest[0])
            at_s.append(search_s + spent_s)
        began_s = time.perf_counter()
        search.learn(batch, [each.time_s for each in found])
    return Run(name, judge, best_s, at_s, search_s, fastest[1])


def measure(folder: Path, a_model: int, trials: int, seeds: int, budget_s: float) -> None:
    """Run what is missing of all tasks and seeds, for as long as the budget lasts.

    Parameters
    ----------
    folder : Path
        Pools, runs and blocks; what is there is taken up.
    a_model : int
        Tasks of each model.
    trials : int
        Of each search.
    seeds : int
        At most.
    budget_s : float
        Wall-clock seconds. What does not fit in is not begun.
    """
    end_s = time.monotonic() + budget_s
    fingerprint = detect_fingerprint(FingerprintOptions())
    tasks = engine_tasks(fingerprint, a_model)
    folder.mkdir(parents=True, exist_ok=True)
    done = {(b["task"], b["seed"]) for b in blocks(folder, trials)}
    longest_s = 0.0
    for seed in range(1, seeds + 1):
        for task in tasks:
            if (task.info.workload, seed) in done:
                continue
            with WorkerPool(
                fingerprint.target, fingerprint.threads, len(os.sched_getaffinity(0))
            ) as workers:
                measurer = Measurer(workers)
                pool = Pool(task, fingerprint, folder / f"{task.info.workload[:16]}.jsonl")
                runs = earlier_runs(folder, task, seed, trials)
                for name, judge in COMBINATIONS:
                    if (name, judge) in runs:
                        continue
                    if time.monotonic() + 1.5 * longest_s > end_s:
                        print("the budget is spent", flush=True)
                        return
                    began_s = time.monotonic()
                    begun = {"began": True, "name": name, "judge": judge, "trials": trials}
                    _append(folder / _RUNS, begun | {"task": task.info.workload, "seed": seed})
                    run = searched(pool, measurer, name, judge, seed, trials)
                    runs[name, judge] = run
                    _append(folder / _RUNS, _told(run, task, seed, trials))
                    longest_s = max(longest_s, time.monotonic() - began_s)
                finalists = list(dict.fromkeys(run.point for run in runs.values() if run.point))
                final_s = pool.in_turns(finalists, measurer)
            block = _block(task, seed, trials, runs, pool.best_s, final_s)
            block |= {"device": fingerprint.device, "threads": fingerprint.threads}
            _append(folder / _BLOCKS, block)
            print(task.info.name, f"seed {seed}", block["over_best"], flush=True)


def _told(run: Run, task: Task, seed: int, trials: int) -> dict[str, Any]:
    point = [run.point.program, run.point.decisions] if run.point else None
    line = run._asdict() | {"point": point, "trials": trials, "seed": seed}
    return line | {"task": task.info.workload, "best_s": _finite(run.best_s)}


def _finite(values: Sequence[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]


def earlier_runs(folder: Path, task: Task, seed: int, trials: int) -> dict[tuple[str, str], Run]:
    """What an earlier process searched, by strategy and judge."""
    found: dict[tuple[str, str], Run] = {}
    begun: Counter[tuple[str, str]] = Counter()
    for line in _lines(folder / _RUNS):
        if (line["task"], line["seed"], line["trials"]) != (task.info.workload, seed, trials):
            continue
        if "began" in line:
            key = (line["name"], line["judge"])
            begun[key] += 1
            if begun[key] == _ATTEMPTS:
                # It took this process along so many times: it found nothing.
                found[key] = Run(*key, [], [], 0.0, None)
            continue
        point = _point(*line["point"]) if line["point"] else None
        best_s = [math.inf if value is None else value for value in line["best_s"]]
        found[line["name"], line["judge"]] = Run(
            line["name"], line["judge"], best_s, line["at_s"], line["search_s"], point
        )
    return found


def _block(
    task: Task,
    seed: int,
    trials: int,
    runs: dict[tuple[str, str], Run],
    best_s: float,
    final_s: dict[Point, float],
) -> dict[str, Any]:
    """One task and seed: how all strategies fared beside the best of all."""
    least_s = min(final_s.values())
    over = {
        key: final_s.get(run.point, NOTHING * least_s) / least_s if run.point else NOTHING
        for key, run in runs.items()
    }
    # Everyone had so many seconds: the time of who was through first.
    equal_s = min(run.at_s[-1] for run in runs.values() if run.at_s)
    return {
        "task": task.info.workload,
        "name": task.info.name,
        "seed": seed,
        "trials": trials,
        "equal_s": round(equal_s, 3),
        "date": time.strftime("%Y-%m-%d"),
        "over_best": {f"{n}, {j}": round(value, 4) for (n, j), value in over.items()},
        "curves": {
            f"{run.name}, {run.judge}": {
                "over_pool": [round(min(s / best_s, NOTHING), 4) for s in run.best_s],
                "at_s": [round(at_s, 2) for at_s in run.at_s],
                "search_s": round(run.search_s, 3),
            }
            for run in runs.values()
        },
    }


def _point(number: int, decisions: list[Any]) -> Point:
    """A point that was written as JSON."""
    return Point(number, tuple(tuple(d) if isinstance(d, list) else d for d in decisions))


def _append(path: Path, line: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def _lines(path: Path) -> list[Any]:
    found = []
    for line in path.read_text().splitlines() if path.is_file() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            # The last line of a run that was killed.
            continue
    return found


def blocks(folder: Path, trials: int) -> list[dict[str, Any]]:
    """Complete tasks and seeds of so many trials."""
    return [block for block in _lines(folder / _BLOCKS) if block["trials"] == trials]


class Measured(NamedTuple):
    """What is known of one point.

    Attributes
    ----------
    time_s : float
        Median of its calls; infinite where it failed.
    cost_s : float
        Its part of the batch's building and measuring.
    """

    time_s: float
    cost_s: float


class Pool:
    """Measured points of one task, kept in a file.

    A point is measured once. A strategy that proposes it later gets the seconds that it had, and is
    charged what building and measuring it took. So seeds and strategies that agree cost little
    machine time. The first line of the file holds the conditions of its figures; a pool of other
    conditions is not read but begun anew.

    Parameters
    ----------
    task : Task
    fingerprint : Fingerprint
    path : Path
        JSON lines; made where there is none.
    """

    def __init__(self, task: Task, fingerprint: Fingerprint, path: Path) -> None:
        self.task = task
        self.space = SearchSpace(task.mod, target_from_json(fingerprint.target))
        self.known: dict[Point, Measured] = {}
        self._path = path
        self._specs = module_specs(task.mod)
        conditions = {
            "workload": task.info.workload,
            "device": fingerprint.device,
            "target": fingerprint.target,
            "threads": fingerprint.threads,
            "tvm": fingerprint.versions.get("apache-tvm", ""),
            "programs": [program.digest for program in self.space.programs],
        }
        head, *lines = _lines(path) or [None]
        if head != conditions:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(conditions) + "\n")
            return
        for number, decisions, time_s, cost_s in lines:
            self.known[_point(number, decisions)] = Measured(
                math.inf if time_s is None else time_s, cost_s
            )

    @property
    def best_s(self) -> float:
        """Seconds of the fastest point; infinite while there is none."""
        return min((each.time_s for each in self.known.values()), default=math.inf)

    def measured(self, proposals: list[Proposal], measurer: Measurer) -> list[Measured]:
        """What proposals take, those that are new measured as one batch."""
        new = {p.point: p for p in proposals if p.point not in self.known}
        if new:
            began_s = time.perf_counter()
            outcomes = measurer.measure(
                [p.schedule.mod for p in new.values()],
                [self._specs] * len(new),
                [self.best_s if math.isfinite(self.best_s) else None] * len(new),
            )
            cost_s = (time.perf_counter() - began_s) / len(new)
            lines = []
            for point, outcome in zip(new, outcomes, strict=True):
                time_s = outcome.median_s if outcome.run_s else math.inf
                self.known[point] = Measured(time_s, cost_s)
                fields: list[Any] = [point.program, point.decisions]
                fields += [time_s if math.isfinite(time_s) else None, round(cost_s, 5)]
                lines.append(json.dumps(fields))
            with self._path.open("a") as file:
                file.write("\n".join(lines) + "\n")
        return [self.known[proposal.point] for proposal in proposals]

    def in_turns(self, points: list[Point], measurer: Measurer) -> dict[Point, float]:
        """Seconds of some points, measured anew in turns; what fails is left out."""
        schedules = {point: self.space.make(point, seed=1).schedule for point in points}
        modules = {point: each.mod for point, each in schedules.items() if each is not None}
        runs_s: dict[Point, list[float]] = {point: [] for point in modules}
        for _ in range(_TURNS):
            outcomes = measurer.measure(
                list(modules.values()),
                [self._specs] * len(modules),
                [None] * len(modules),
                races=range(len(modules)),
            )
            for point, outcome in zip(modules, outcomes, strict=True):
                runs_s[point] += outcome.run_s or []
        return {point: statistics.median(taken) for point, taken in runs_s.items() if taken}
