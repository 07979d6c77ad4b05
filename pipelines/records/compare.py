"""Recorded results side by side, from MLflow, with the conditions they were measured under."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from fewtune.errors import InputError
from fewtune.report.conditions import target_name
from fewtune.util.table import MISSING, Table, number, percent
from fewtune.util.validation import nearest
from pipelines.records.tracking import Store
from stages.params import COMPARED

# isort: split
from mlflow.entities import Run

_RUN_ID = re.compile(r"[0-9a-f]{6,32}")
_FIGURES = (
    ("tuning s", "tuning_s"),
    ("latency ms", "latency_ms"),
    ("untuned ms", "untuned_latency_ms"),
    ("onnxruntime ms", "onnxruntime_latency_ms"),
    ("OpenVINO ms", "openvino_latency_ms"),
    ("x over onnxruntime", "times_onnxruntime"),
    ("tasks", "tasks"),
    ("representatives", "representatives"),
    ("trials", "trials"),
)
_CONDITIONS = (
    ("machine", "machine.device"),
    ("target", "machine.target"),
    ("threads", "machine.threads"),
    ("tvm", "machine.versions.apache-tvm"),
    ("onnxruntime", "machine.versions.onnxruntime"),
    ("trials a task", "tune.trials_per_task"),
    ("budget s", "tune.budget_s"),
    ("shared schedules", "share_schedules.top"),
    ("seed", "tune.seed"),
)


def compare(root: Path, names: Sequence[str]) -> tuple[Table, list[str]]:
    """Put recorded results side by side.

    Parameters
    ----------
    root : Path
        The checkout.
    names : sequence of str
        Models, run names (``<model>-<strategy>``), run ids or their beginnings. A model means the
        latest result of each of its strategies, the selective one first.

    Returns
    -------
    table : Table
        One column for each result.
    lines : list of str
        Ratios of the figures, and reasons why they cannot be compared.

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
    runs: list[Run] = []
    for name in names:
        for run in _named(name, recorded):
            if run.info.run_id not in [chosen.info.run_id for chosen in runs]:
                runs.append(run)
    if len(runs) < 2:
        model = runs[0].data.tags["model"] if runs else "MODEL"
        strategy = runs[0].data.tags["strategy"] if runs else COMPARED[0]
        other = next(each for each in COMPARED if each != strategy)
        raise InputError(
            f"only one result of {model} is recorded ({strategy}): name another one, or make it "
            f"with `fewtune run {model} --strategy {other}`"
        )
    return _table(runs), [*_ratios(runs), *_warnings(runs)]


def _named(name: str, recorded: Sequence[Run]) -> list[Run]:
    """The runs that ``name`` means."""
    of_model = [run for run in recorded if run.data.tags.get("model") == name]
    if of_model:
        latest: dict[str, Run] = {}
        for run in of_model:
            latest.setdefault(run.data.tags["strategy"], run)
        order = {strategy: place for place, strategy in enumerate(COMPARED)}
        return [latest[key] for key in sorted(latest, key=lambda key: (order.get(key, 9), key))]
    of_result = [run for run in recorded if run.info.run_name == name]
    if of_result:
        return of_result[:1]
    of_id = [run for run in recorded if run.info.run_id.startswith(name)]
    if _RUN_ID.fullmatch(name) and len(of_id) == 1:
        return of_id
    if _RUN_ID.fullmatch(name) and len(of_id) > 1:
        raise InputError(f"{name!r} begins the ids of {len(of_id)} runs: give more of it")
    known = dict.fromkeys(run.data.tags.get("model", "") for run in recorded)
    raise InputError(f"{name!r} is not recorded in MLflow{nearest(name, known, 'recorded models')}")


def _table(runs: Sequence[Run]) -> Table:
    names = [f"{run.info.run_name} {run.info.run_id[:8]}" for run in runs]
    rows = [
        [label, *(number(run.data.metrics.get(key)) for run in runs)] for label, key in _FIGURES
    ]
    error = "max_relative_error"
    rows.append(
        [
            "max rel. error",
            *(
                f"{run.data.metrics[error]:.1e}" if error in run.data.metrics else MISSING
                for run in runs
            ),
        ]
    )
    for label, key in (("used time %", "used_time_pct"), ("achieved %", "achieved_perf_pct")):
        if any(key in run.data.metrics for run in runs):
            rows.append([label, *(percent(run.data.metrics.get(key)) for run in runs)])
    for label, key in _CONDITIONS:
        values = [run.data.params.get(key, MISSING) for run in runs]
        if key == "machine.target":
            values = [target_name(value) for value in values]
        if any(value != MISSING for value in values):
            rows.append([label, *values])
    rows.append(["measured", *(run.data.tags.get("measured", MISSING) for run in runs)])
    rows.append(["git commit", *(run.data.tags.get("git_commit", MISSING)[:8] for run in runs)])
    return Table(["", *names], rows)


def _ratios(runs: Sequence[Run]) -> list[str]:
    """Selective against full, for each model that has both and one machine for both."""
    lines = []
    for model in dict.fromkeys(run.data.tags["model"] for run in runs):
        of_model = {
            run.data.tags["strategy"]: run
            for run in reversed(runs)
            if run.data.tags["model"] == model
        }
        if not set(COMPARED) <= set(of_model):
            continue
        selective, full = (of_model[strategy] for strategy in COMPARED)
        if selective.data.tags.get("fingerprint") != full.data.tags.get("fingerprint"):
            continue
        ours, theirs = selective.data.metrics, full.data.metrics
        if min(theirs.get("tuning_s", 0), ours.get("latency_ms", 0)) <= 0:
            continue
        used = 100 * ours["tuning_s"] / theirs["tuning_s"]
        achieved = 100 * theirs["latency_ms"] / ours["latency_ms"]
        measured = ours.get("achieved_perf_pct")
        lines.append(
            f"{model}: selective took {used:.1f} % of full tuning's time for {achieved:.1f} % of "
            "its performance"
            + (f" ({measured:.1f} % when measured interleaved)" if measured is not None else "")
        )
    return lines


def _warnings(runs: Sequence[Run]) -> list[str]:
    """A line if the results' machines or versions differ."""
    if len({run.data.tags.get("fingerprint") for run in runs}) == 1:
        return []
    keys = sorted({key for run in runs for key in run.data.params if key.startswith("machine.")})
    different = [
        key.removeprefix("machine.")
        for key in keys
        if len({run.data.params.get(key) for run in runs}) > 1
    ]
    return [
        "warning: measured on different machines or versions, not comparable: "
        f"{', '.join(different) or 'their fingerprints'} differ"
    ]
