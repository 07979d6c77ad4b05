"""Recorded results side by side, from MLflow, with the conditions they were measured under."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fewtune.errors import InputError
from fewtune.pipelines.records.tracking import DISTURBED, Store
from fewtune.stages.params import COMPARED
from fewtune.util.table import MISSING, Table, number
from fewtune.util.validation import nearest

# isort: split
from mlflow.entities import Run

_RUN_ID = re.compile(r"[0-9a-f]{6,32}")
_FIGURES = {
    "tuning s": "tuning_s",
    "latency ms": "latency_ms",
    "untuned ms": "untuned_latency_ms",
    "onnxruntime ms": "onnxruntime_latency_ms",
    "OpenVINO ms": "openvino_latency_ms",
    "x over onnxruntime": "times_onnxruntime",
    "tasks": "tasks",
    "representatives": "representatives",
    "trials": "trials",
    "max rel. error": "max_relative_error",
    "used time %": "used_time_pct",
    "achieved %": "achieved_perf_pct",
}
# MLflow knows no whole numbers.
_COUNTS = {"tasks", "representatives", "trials"}
_CONDITIONS = {
    "machine": "machine.device",
    "threads": "machine.threads",
    "tvm": "machine.versions.apache-tvm",
    "onnxruntime": "machine.versions.onnxruntime",
    "trials a task": "tune.trials_per_task",
    "budget s": "tune.budget_s",
    "contenders a round": "share_schedules.trials_per_task",
    "seed": "tune.seed",
}
_TAGS = {
    "target": "target",
    "measured": "measured",
    "git_commit": "git commit",
}


def runs_named(root: Path, names: Sequence[str]) -> list[Run]:
    """Two or more recorded results.

    Parameters
    ----------
    root : Path
        The checkout.
    names : sequence of str
        Models, run names (``<model>-<strategy>``), run ids or their beginnings. A model means the
        latest result of each of its strategies, the selective one first; of one strategy, its
        latest result and the one before.

    Raises
    ------
    InputError
        If a name is not recorded, or there are not two results.
    MachineError
        If MLflow cannot be reached.
    """
    store = Store(root)
    recorded = store.results()
    if not recorded:
        raise InputError(
            f"nothing is recorded in MLflow yet ({store.uri}): `fewtune run` records its results"
        )
    runs = list({run.info.run_id: run for name in names for run in _named(name, recorded)}.values())
    if len(runs) < 2:
        tags = runs[0].data.tags
        other = next(each for each in COMPARED if each != tags["strategy"])
        raise InputError(
            f"only one result of {tags['model']} is recorded ({tags['strategy']}): name another "
            f"one, or make it with `fewtune run {tags['model']} --strategy {other}`"
        )
    return runs


def said_of(runs: Sequence[Run]) -> list[str]:
    """Ratios of the figures, what disturbed them, and reasons why they cannot be compared."""
    tags = {_name(run): run.data.tags for run in runs}
    disturbed = [f"disturbed: {it}: {tags[it][DISTURBED]}" for it in tags if DISTURBED in tags[it]]
    return [*_ratios(runs), *disturbed, *_warnings(runs)]


def _name(run: Run) -> str:
    return f"{run.info.run_name} {run.info.run_id[:8]}"


def _named(name: str, recorded: Sequence[Run]) -> list[Run]:
    """The runs that ``name`` means."""
    of_model = [run for run in recorded if run.data.tags["model"] == name]
    latest = {run.data.tags["strategy"]: run for run in reversed(of_model)}
    if len(latest) == 1:
        return of_model[1::-1]
    if latest:
        order = [*COMPARED, *sorted(latest)]
        return [latest[key] for key in sorted(latest, key=order.index)]
    of_result = [run for run in recorded if run.info.run_name == name]
    of_id = [run for run in recorded if run.info.run_id.startswith(name)]
    if of_result:
        return of_result[:1]
    if of_id and _RUN_ID.fullmatch(name):
        if len(of_id) > 1:
            raise InputError(f"{name!r} begins the ids of {len(of_id)} runs: give more of it")
        return of_id
    known = dict.fromkeys(run.data.tags["model"] for run in recorded)
    raise InputError(f"{name!r} is not recorded in MLflow{nearest(name, known, 'recorded models')}")


def runs_table(runs: Sequence[Run]) -> Table:
    """One column for each result."""
    columns = []
    for data in (run.data for run in runs):
        figures = [
            number(data.metrics.get(key), digits=0 if key in _COUNTS else 3)
            for key in _FIGURES.values()
        ]
        conditions = [data.params.get(key, MISSING) for key in _CONDITIONS.values()]
        columns.append([*figures, *conditions, *(data.tags.get(it, MISSING) for it in _TAGS)])
    rows = zip([*_FIGURES, *_CONDITIONS, *_TAGS.values()], *columns, strict=True)
    heads = ["", *map(_name, runs)]
    return Table(heads, [[*row] for row in rows if any(cell != MISSING for cell in row[1:])])


def _ratios(runs: Sequence[Run]) -> list[str]:
    """Selective against full, for each model that has both and one machine for both."""
    lines = []
    for model in dict.fromkeys(run.data.tags["model"] for run in runs):
        own = [run for run in runs if run.data.tags["model"] == model]
        of_model = {run.data.tags["strategy"]: run.data for run in reversed(own)}
        selective, full = (of_model.get(strategy) for strategy in COMPARED)
        if not selective or not full or len(_machines(own)) > 1 or not full.metrics["tuning_s"]:
            continue
        ours, theirs = selective.metrics, full.metrics
        used = 100 * ours["tuning_s"] / theirs["tuning_s"]
        achieved = 100 * theirs["latency_ms"] / ours["latency_ms"]
        measured = ours.get("achieved_perf_pct")
        lines.append(
            f"{model}: selective took {used:.1f} % of full tuning's time for {achieved:.1f} % of "
            "its performance"
            + (f" ({measured:.1f} % when measured interleaved)" if measured is not None else "")
        )
    return lines


def _machines(runs: Sequence[Run]) -> set[str]:
    return {run.data.tags.get("fingerprint", "") for run in runs}


def _warnings(runs: Sequence[Run]) -> list[str]:
    """A line if the results' machines or versions differ."""
    if len(_machines(runs)) == 1:
        return []
    values = [(key, value) for run in runs for key, value in run.data.params.items()]
    count = Counter(key for key, _ in set(values) if key.startswith("machine."))
    different = sorted(key.removeprefix("machine.") for key in count if count[key] > 1)
    return [
        "warning: measured on different machines or versions, not comparable: "
        f"{', '.join(different) or 'their fingerprints'} differ"
    ]
