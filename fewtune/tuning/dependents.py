"""Move the representatives' schedules to their dependents and measure them: the child process."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fewtune.machine import has_own_device, target_from_json
from fewtune.schedule.default import default_schedule
from fewtune.schedule.prior import Prior
from fewtune.schedule.search_space import SearchSpace, sampling
from fewtune.schedule.transfer import Donation, move
from fewtune.task.extract import Task
from fewtune.tuning.cost_model import BoostedTrees
from fewtune.tuning.journal import Journal
from fewtune.tuning.known import measured_trials, teach
from fewtune.tuning.log import Trial, best_trials, read_database, trace_key
from fewtune.tuning.measure import Measurer, module_specs
from fewtune.tuning.options import ShareOptions
from fewtune.tuning.pool import WorkerPool
from fewtune.tuning.progress import Progress, Snapshot
from fewtune.tuning.strategies import Scorer
from fewtune.tuning.supervise import Clock
from fewtune.tvm_runtime import ms, tvm


def median_s(entry: dict[str, Any] | None) -> float:
    """Median seconds of a trial as a journal holds it; infinite where there is none."""
    return Trial.from_json(entry).outcome.median_s if entry else float("inf")


def measure_dependents(
    job: dict[str, Any],
    tasks: list[Task],
    target_json: str,
    threads: int,  # noqa: ARG001 (every work is called alike)
    journal: Journal,
    progress: Progress,
    pool: WorkerPool,
) -> None:
    """Child process: move and measure schedules for every dependent that the journal lacks."""
    target = target_from_json(target_json)
    options = ShareOptions.model_validate(job["options"])
    database = read_database(Path(job["tune_directory"]))
    by_name = {task.info.name: task for task in tasks}
    done = {e["task"] for e in journal.events if e["kind"] in ("shared", "crash")}
    clock = Clock(max((e.get("elapsed_s", 0.0) for e in journal.events), default=0.0))
    measurer = Measurer(pool, overlap=has_own_device(target))
    waiting = [name for name in job["dependents"] if name not in done]
    donors = sorted({job["dependents"][name] for name in waiting})
    cost_model = BoostedTrees()
    for name, trials in measured_trials(database, [by_name[name] for name in donors]).items():
        teach(cost_model, SearchSpace(by_name[name].mod, target), trials)
    measured = sum(len(e.get("candidates", ())) for e in journal.events)
    for place, (name, representative) in enumerate(job["dependents"].items()):
        if name in done:
            continue
        journal.append({"kind": "start", "task": name})
        event = _share_one(
            by_name[name], by_name[representative], database, options, measurer, target, cost_model
        )
        journal.append({**event, "elapsed_s": round(clock.elapsed_s, 3)})
        measured += len(event["candidates"])
        best_s = min((median_s(c) for c in event["candidates"]), default=float("inf"))
        default_s = median_s(event["default"])
        pace_s = clock.elapsed_s / (place + 1)
        progress.show(
            Snapshot(
                phase=f"share {place + 1}/{len(job['dependents'])} tasks,",
                task=name,
                detail=f"{by_name[name].info.shapes_text} from {representative}",
                trials=measured,
                task_trials=len(event["candidates"]),
                trials_total=measured,
                default_ms=default_s * 1e3 if default_s != float("inf") else None,
                best_ms=best_s * 1e3 if best_s != float("inf") else None,
                elapsed_s=clock.elapsed_s,
                left_s=pace_s * (len(job["dependents"]) - place - 1),
                failures=dict(sorted(measurer.failures.items())),
            )
        )


def _share_one(
    task: Task,
    donor: Task,
    database: ms.database.Database,
    options: ShareOptions,
    measurer: Measurer,
    target: tvm.target.Target,
    cost_model: BoostedTrees,
) -> dict[str, Any]:
    """Move the donor's best schedules to ``task``; measure them beside the default schedule."""
    # A default schedule makes no choices: there is nothing of it to move.
    everything = [r for r in best_trials(database, donor.mod, 1_000_000) if sampling(r.trace)]
    records = everything[: options.count(len(everything))]
    space = SearchSpace(task.mod, target)
    reasons: Counter[str] = Counter()
    offers: dict[str, _Offer] = {}
    for rank, record in enumerate(records, start=1):
        moved = move(Donation.of(record.trace), space)
        if moved.schedule is None:
            reasons[moved.reason] += 1
        else:
            key = trace_key(moved.schedule.trace)
            offers.setdefault(key, _Offer(moved.schedule, rank))
    scorer = Scorer(space, cost_model)
    if scorer.trained:
        for schedule in _drawn(space, options.draws, [options.seed, *task.info.name.encode()]):
            offers.setdefault(trace_key(schedule.trace), _Offer(schedule, None))
    likeliest = _likeliest(list(offers.values()), scorer, options.trials_per_task)
    default = default_schedule(task.mod, target)
    candidates = [offer.schedule for offer in likeliest]
    # The default is measured in the same batch: its figure of an hour ago is no comparison.
    first = [default] if default is not None else []
    batch = [*first, *candidates]
    outcomes = measurer.measure(
        [schedule.mod for schedule in batch],
        [module_specs(task.mod)] * len(batch),
        [None] * len(batch),
    )
    entries = []
    for schedule, outcome in zip(batch, outcomes, strict=True):
        trial = Trial(trace_key(schedule.trace), outcome.run_s, outcome.cause)
        entries.append(trial.as_json())
    return {
        "kind": "shared",
        "task": task.info.name,
        "offered": len(records),
        "reasons": dict(sorted(reasons.items())),
        "default": entries[0] if first else None,
        "candidates": [
            {**entry, "rank": offer.rank}
            for entry, offer in zip(entries[len(first) :], likeliest, strict=True)
        ],
    }


class _Offer(NamedTuple):
    """A schedule that a dependent could take: its rank at the donor, None if drawn by rule."""

    schedule: tvm.s_tir.Schedule
    rank: int | None


def _drawn(space: SearchSpace, count: int, seed: list[int]) -> list[tvm.s_tir.Schedule]:
    """Schedules whose register tiles fit this task by rule, where there is a rule for it."""
    prior, random = Prior(space), np.random.default_rng(seed)
    if not prior.informed:
        return []
    made = [space.make(prior.draw(random), number) for number in range(1, count + 1)]
    return [one.schedule for one in made if one.schedule is not None]


def _likeliest(offers: list[_Offer], scorer: Scorer, count: int) -> list[_Offer]:
    """The first offer, and beside it those that the cost model rates best here."""
    if len(offers) <= count or not scorer.trained:
        return offers[:count]
    scores = scorer.score(scorer.features([offer.schedule for offer in offers]))
    others = sorted(range(1, len(offers)), key=lambda place: -scores[place])
    return [offers[place] for place in [0, *others[: count - 1]]]
