"""Whole models, by how tasks are selected and by what rates candidates: measured.

To be run in a checkout where ``fewtune run MODEL --strategy full`` was done. A way of selecting
takes its representatives' trials from the full run's log, as `benchmarks.parts.ablation` does, and
shares anew; a cost model searches every task with a few trials. What each came to is measured in
the end in turns, task by task, so that no two are told apart by the moment they ran at.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.parts import selections
from benchmarks.parts.ablation_variants import write_tuned
from fewtune.artifacts import Fingerprint, TuneReport
from fewtune.measure.measurer import Measurer, module_specs
from fewtune.options import ShareOptions, TuneOptions
from fewtune.predictor import AUTO, NEVER, PREDEFINED
from fewtune.runtime.target import target_from_json
from fewtune.runtime.tvm import tvm
from fewtune.selection.options import SelectOptions
from fewtune.selection.select import select_tasks
from fewtune.sharing.share import share_schedules
from fewtune.storage.database import best_trials, read_database, replay, write_database
from fewtune.task.extract import Task, read_tasks
from fewtune.timing.cold_weights import weights_outgrow_cache
from fewtune.trial.trial import Trial
from fewtune.tuning.tune import run_session
from fewtune.util.files import canonical_json, write_text
from fewtune.workers.pool import WorkerPool
from stages.paths import Places

SELECTIONS: dict[str, selections.Choose] = {
    "cliques": selections.cliques,
    "agglomerative": selections.agglomerative,
    "lots": partial(selections.random_representatives, seed=1),
    "one an operator": selections.one_a_family,
    # How far two equal ways differ.
    "cliques again": selections.cliques,
}
ALONE = "none: every task by itself"
COST_MODELS: dict[str, dict[str, str]] = {
    "decision predictor": {"predictor": AUTO},
    "predefined": {"predictor": PREDEFINED},
    "xgboost (stock features)": {"predictor": NEVER},
    "gcn": {"predictor": NEVER, "cost_model": "gcn"},
}
_TRIALS = 8
# Tasks that a model's time is mostly of; the others are left out of the duels.
_MOST_TASKS, _ROUNDS, _ROUND_S = 20, 10, 0.005
# How long a part takes beside the full tuning of the model: 264 and 84 s, SqueezeNet's takes 69.
_OF_FULL = {"selections": 3.9, "cost_models": 1.3}

# Seconds that a way took, and the schedule that each task has by it.
Came = tuple[dict[str, Any], dict[str, tvm.IRModule]]


class Model:
    """A model that was tuned in full here."""

    def __init__(self, places: Places, name: str) -> None:
        self.places, self.name = places, name
        self.fingerprint = Fingerprint.read(places.fingerprint)
        self.target = target_from_json(self.fingerprint.target)
        self.tasks = read_tasks(places.tasks(name))
        self.full = places.tuned(name, "full")
        self.work = places.scratch / "study" / name

    def scheduled(self, directory: Path, names: set[str]) -> dict[str, tvm.IRModule]:
        """The fastest schedule of each task that a log holds."""
        database = read_database(directory)
        found = {}
        for task in self.tasks:
            records = best_trials(database, task.mod, 1) if task.info.name in names else []
            for record in records:
                found[task.info.name] = replay(task.mod, Trial.from_record(record), self.target).mod
        return found

    def dueled(self, ways: dict[str, dict[str, tvm.IRModule]]) -> dict[str, float]:
        """Milliseconds of all heavy tasks together, by way; measured in turns, task by task."""
        heavy = sorted(self.tasks, key=lambda task: (-task.info.share, task.info.name))
        total_ms = dict.fromkeys(ways, 0.0)
        with WorkerPool(self.fingerprint.target, self.fingerprint.threads, 1) as workers:
            measurer = Measurer(workers, cold_weights=weights_outgrow_cache(self.tasks))
            for task in heavy[:_MOST_TASKS]:
                name = task.info.name
                if not all(name in way for way in ways.values()):
                    continue
                built = measurer.build([way[name] for way in ways.values()])
                specs = module_specs(task.mod)
                outcomes = measurer.duel(built, specs, rounds=_ROUNDS, round_s=_ROUND_S)
                workers.tidy()
                if all(outcome.run_s for outcome in outcomes):
                    for way, outcome in zip(ways, outcomes, strict=True):
                        total_ms[way] += task.info.weight * outcome.median_s * 1e3
        return total_ms

    def selected(self, name: str, choose: selections.Choose) -> Came:
        """Select in a way, take the representatives' trials from the full log, and share."""
        options = SelectOptions(method="cliques")
        began_s = time.perf_counter()
        base, matrix = select_tasks(
            self.tasks, options, target=self.target, model=self.name, strategy="study"
        )
        by_name = {task.info.name: task for task in self.tasks}
        found = selections.Candidates(
            [by_name[each] for each in matrix.names], matrix.values, options.min_similarity
        )
        clusters = choose(found)
        selection = selections.as_selection(
            base, found, clusters, "study", name, options.min_cluster_share
        )
        selecting_s = time.perf_counter() - began_s
        work = self.work / name.replace(" ", "_")
        shutil.rmtree(work, ignore_errors=True)
        (work / "share").mkdir(parents=True)
        tuned = write_tuned(self.full, self.tasks, selection, self.fingerprint, work / "tune")
        shared = share_schedules(
            self.tasks,
            selection,
            work / "tune",
            self.fingerprint,
            ShareOptions(finals=0),
            work / "journal",
            work / "share",
        )
        names = {task.info.name for task in self.tasks} - set(selection.set_aside)
        modules = self.scheduled(work / "share", names)
        row = {
            "representatives": len(selection.representatives),
            "trials": tuned.trials + shared.trials,
            "tuning_s": round(selecting_s + tuned.tuning_s + shared.sharing_s, 2),
        }
        return row, modules

    def searched(self, trials: int, changes: dict[str, str]) -> Came:
        """Search every task that is worth it by itself, with so many trials."""
        tasks = self.wanted()
        work = self.work / "search"
        shutil.rmtree(work, ignore_errors=True)
        options = TuneOptions.model_validate(
            {"trials_per_task": trials, "batch_size": 4, "least_gain": 0.0, **changes}
        )
        names = [task.info.name for task in tasks]
        state = run_session(
            tasks,
            names,
            self.fingerprint,
            options,
            work,
            cold_weights=weights_outgrow_cache(self.tasks),
        )
        log = work / "log"
        log.mkdir(parents=True, exist_ok=True)
        write_database(
            log,
            {name: state.tasks[name].task.mod for name in names},
            {name: state.tasks[name].published() for name in names},
            self.target,
        )
        row = {
            "trials": state.trials,
            "tuning_s": round(state.elapsed_s, 2),
            "curve": [[p.elapsed_s, p.estimated_latency_ms] for p in state.curve],
        }
        return row, self.scheduled(log, set(names))

    def wanted(self) -> list[Task]:
        """Those that the full run searched."""
        known = {line.task for line in TuneReport.read(self.full).tasks}
        return [task for task in self.tasks if task.info.name in known]


def selection_rows(model: Model) -> list[dict[str, Any]]:
    """A model's rows, one a way of selecting."""
    ways: dict[str, Callable[[], Came]] = {
        name: partial(model.selected, name, choose) for name, choose in SELECTIONS.items()
    }
    came = {name: way() for name, way in ways.items()}
    # Without selection: as many trials as cliques took, spread over all tasks.
    trials = max(1, round(came["cliques"][0]["trials"] / max(1, len(model.wanted()))))
    came[ALONE] = model.searched(trials, {})
    return _rows(model, came)


def cost_model_rows(model: Model) -> list[dict[str, Any]]:
    """A model's rows, one a cost model: at equal trials, and at equal seconds."""
    came = {name: model.searched(_TRIALS, changes) for name, changes in COST_MODELS.items()}
    rows = _rows(model, came)
    equal_s = min(row["tuning_s"] for row in rows)
    for row in rows:
        curve = row.pop("curve")
        known = [latency_ms for at_s, latency_ms in curve if at_s <= equal_s]
        row["equal_s"] = equal_s
        row["estimate_at_equal_s_ms"] = round(known[-1], 4) if known else None
        row["estimate_ms"] = round(curve[-1][1], 4) if curve else None
    return rows


def _rows(model: Model, came: dict[str, Came]) -> list[dict[str, Any]]:
    full = model.scheduled(model.full, {task.info.name for task in model.tasks})
    total_ms = model.dueled({"full": full, **{name: mods for name, (_, mods) in came.items()}})
    full_s = TuneReport.read(model.full).tuning_s
    rows = []
    for name, (row, _) in came.items():
        row.pop("curve", None) if name == ALONE else None
        rows.append(
            {
                "name": name,
                "model": model.name,
                **row,
                "used_time_pct": round(100 * row["tuning_s"] / full_s, 2),
                "kernels_ms": round(total_ms[name], 4),
                "achieved_pct": round(100 * total_ms["full"] / total_ms[name], 2),
                "device": model.fingerprint.device,
                "threads": model.fingerprint.threads,
                "date": time.strftime("%Y-%m-%d"),
            }
        )
    return rows


def measure(
    kind: str, places: Places, models: list[str], budget_s: float, kept: Path
) -> list[dict[str, Any]]:
    """Rows of all models that the budget lasts for; each model's are kept in a file.

    Parameters
    ----------
    kind : str
        ``selections`` or ``cost_models``.
    places : Places
    models : list of str
        Tuned in full there.
    budget_s : float
        Wall-clock seconds; a model is begun if what it is expected to take still fits in.
    kept : Path
        JSON of the rows by model; models that stand there are not measured again.
    """
    make = {"selections": selection_rows, "cost_models": cost_model_rows}[kind]
    known = _rows_by_model(kept)
    end_s = time.monotonic() + budget_s
    for name, about_s in expected_s(kind, places, models, kept).items():
        if time.monotonic() + about_s > end_s:
            print(f"{kind}: {name} takes about {about_s:.0f} s, more than is left", flush=True)
            continue
        began_s = time.monotonic()
        known[name] = make(Model(places, name))
        write_text(kept, canonical_json(known))
        achieved = {row["name"]: row["achieved_pct"] for row in known[name]}
        print(f"{kind}: {name} in {time.monotonic() - began_s:.0f} s: {achieved}", flush=True)
    return [row for name in known for row in known[name]]


def expected_s(kind: str, places: Places, models: list[str], kept: Path) -> dict[str, float]:
    """Seconds that each model takes which is not measured yet; arguments as of `measure`."""
    known = _rows_by_model(kept)
    return {
        name: _OF_FULL[kind] * TuneReport.read(places.tuned(name, "full")).tuning_s
        for name in models
        if name not in known
    }


def _rows_by_model(kept: Path) -> dict[str, list[dict[str, Any]]]:
    return json.loads(kept.read_text()) if kept.is_file() else {}


def geomean(rows: list[dict[str, Any]], key: str) -> float:
    """Geometric mean of a figure over rows."""
    return math.exp(sum(math.log(row[key]) for row in rows) / len(rows))
