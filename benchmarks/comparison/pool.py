"""Measured points of a task, kept in a file: strategies are judged by them again and again.

A point is measured once. A strategy that proposes it later gets the seconds that it had, and is
charged what building and measuring it took. So seeds and strategies that agree cost little machine
time. The first line of the file holds the conditions of its figures; a pool of other conditions is
not read but begun anew.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

from fewtune.artifacts import Fingerprint
from fewtune.measure.measurer import Measurer, module_specs
from fewtune.runtime.target import target_from_json
from fewtune.schedule.space.design_space import Point
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.search import Proposal
from fewtune.task.extract import Task
from fewtune.timing.cache_state import MEASURING


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
    """Measured points of one task.

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
        head = json.dumps(
            {
                "workload": task.info.workload,
                "device": fingerprint.device,
                "target": fingerprint.target,
                "threads": fingerprint.threads,
                "tvm": fingerprint.versions.get("apache-tvm", ""),
                "measuring": MEASURING,
                "programs": [program.digest for program in self.space.programs],
            },
            sort_keys=True,
        )
        lines = path.read_text().splitlines() if path.is_file() else []
        if lines[:1] == [head]:
            self._read(lines[1:])
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(head + "\n")

    def _read(self, lines: list[str]) -> None:
        for line in lines:
            try:
                number, decisions, time_s, cost_s = json.loads(line)
            except ValueError:
                # The last line of a run that was killed.
                continue
            each = tuple(tuple(d) if isinstance(d, list) else d for d in decisions)
            self.known[Point(number, each)] = Measured(
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

    def duel(self, points: list[Point], measurer: Measurer) -> dict[Point, float]:
        """Seconds of some points, measured anew in turns; what fails is left out."""
        schedules = {point: self.space.make(point, seed=1).schedule for point in points}
        usable = [point for point, schedule in schedules.items() if schedule is not None]
        built = measurer.build([schedules[point].mod for point in usable])
        outcomes = measurer.duel(built, self._specs, rounds=15, round_s=0.01)
        found = zip(usable, outcomes, strict=True)
        return {point: outcome.median_s for point, outcome in found if outcome.run_s}
