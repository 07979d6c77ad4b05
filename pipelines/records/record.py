"""Records results in MLflow, one run for each, from the stages' output files, only once.

A stage that DVC takes from its cache does not run, so nothing is logged inside a stage.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from fewtune.artifacts import Curve, ImportReport
from fewtune.errors import InputError
from fewtune.pipelines.checkout.results import comparison_of, read_result
from fewtune.pipelines.dvc_repo.dag import Result
from fewtune.pipelines.dvc_repo.dvc_lock import DvcLock, flatten
from fewtune.pipelines.records.mlflow_model import save_model
from fewtune.pipelines.records.page import model_page
from fewtune.pipelines.records.recorded import remember
from fewtune.pipelines.records.registry import machine_of, register
from fewtune.pipelines.records.tracking import DISTURBED, MACHINE, Store
from fewtune.report import tables
from fewtune.report.tables import target_name
from fewtune.stages.params import COMPARED
from fewtune.stages.paths import Places

# isort: split
from mlflow.entities import Metric, Param, RunTag, SourceType
from mlflow.utils.mlflow_tags import (
    MLFLOW_GIT_COMMIT,
    MLFLOW_RUN_NOTE,
    MLFLOW_SOURCE_NAME,
    MLFLOW_SOURCE_TYPE,
)

COMPARISON_TAG = "fewtune.comparison"
# The page of the model as it was when the result was recorded.
PAGE = "report.html"
CURVE = "estimated_latency_ms"
# MLflow's limit.
_TEXT = 6000
# The library is part of the MLflow model.
_KEPT = {".json", ".csv", ".md", ".png"}
_OF_MODEL = {"source", "source_sha256", "binding", "opset", "parameters", "layout", "transposes"}


def record_finished(root: Path, result: Result, stages: Sequence[str]) -> str:
    """Record a result or, without a strategy, a model's comparison; remember that.

    Parameters, returns and errors as `record_result` and `record_comparison`.
    """
    if result.strategy:
        logs = [Places(root).log(stage) for stage in stages]
        line = record_result(root, result, stages, logs)
    else:
        line = record_comparison(root, result.model)
    remember(root, result)
    return line


def record_result(root: Path, result: Result, stages: Sequence[str], logs: Iterable[Path]) -> str:
    """Record a result, unless this very result is recorded; say what was done.

    Parameters
    ----------
    root : Path
        The checkout.
    result : Result
        A model with a strategy, with its outputs on disk.
    stages : sequence of str
        The stages that made it, as dvc.lock names them: their parameters are recorded.
    logs : iterable of Path
        Files with the output of those stages, if it was kept.

    Raises
    ------
    InputError
        If the result is not on disk or not in dvc.lock.
    MachineError
        If MLflow cannot be reached.
    """
    found = read_result(root, result.model, result.strategy)
    if found is None:
        raise InputError(f"{result} has no result to record: its benchmark is missing")
    places, lock, store = Places(root), DvcLock(root), Store(root)
    key = lock.key(places.benchmarked(result.model, result.strategy))
    recorded = store.recorded(key)
    if recorded is not None:
        return f"{result} is in MLflow already: {store.place(recorded.info.run_id)}"
    places.scratch.mkdir(parents=True, exist_ok=True)
    ended_ms = _milliseconds(found.benchmark.conditions.date)
    span_ms = (ended_ms - int(1000 * found.metrics.tuning_s), ended_ms)
    with store.recording(key, str(result), span_ms=span_ms) as run_id:
        client = store.client
        tags = _tags(root, result, found, lock)
        link = f"#/experiments/{store.experiment_id}/runs/{run_id}/artifacts/{PAGE}"
        tags[MLFLOW_RUN_NOTE] = f"[Plots]({link})\n\n{tags[MLFLOW_RUN_NOTE]}"[:_TEXT]
        parameters = sorted(_parameters(root, result, found, lock, stages).items())
        client.log_batch(
            run_id,
            params=[Param(name, value[:_TEXT]) for name, value in parameters],
            tags=[RunTag(name, value) for name, value in tags.items()],
        )
        model_id = store.model(run_id, str(result), tags)
        ids = {"run_id": run_id, "model_id": model_id}
        metrics = [Metric(it, value, ended_ms, 0, **ids) for it, value in _figures(found).items()]
        metrics += _curve(places.shared(result.model, result.strategy), span_ms[0])
        client.log_batch(run_id, metrics=metrics)
        client.log_text(run_id, model_page(root, result.model), PAGE)
        with tempfile.TemporaryDirectory(dir=places.scratch) as scratch:
            _gather(places, result, logs, Path(scratch, "files"))
            client.log_artifacts(run_id, str(Path(scratch, "files")))
            saved = Path(scratch, "model")
            save_model(root, result, found.benchmark.conditions.fingerprint, saved, ids)
            client.log_model_artifacts(model_id, str(saved))
        client.finalize_logged_model(model_id, "READY")
        version = register(client, result, found.benchmark, ids)
    return f"{result} is recorded in MLflow: {store.place(run_id)}, {version}"


def _figures(found: tables.Result) -> dict[str, float]:
    """The columns of MLflow's table; all other measurements are in the artifacts."""
    tuned, metrics = found.benchmark.variants["tuned"], found.metrics
    further = ("openvino_latency_ms", "tasks", "representatives", "max_relative_error")
    figures: dict[str, float | None] = {
        **metrics.headline(),
        **{name: getattr(metrics, name) for name in further},
        "latency_p10_ms": tuned.p10_ms,
        "latency_p90_ms": tuned.p90_ms,
    }
    return {name: _shown(value) for name, value in figures.items() if value is not None}


def _shown(value: float) -> float:
    """A figure with as many digits as a column of MLflow's page shows."""
    return float(f"{value:.5g}")


def _tags(root: Path, result: Result, found: tables.Result, lock: DvcLock) -> dict[str, str]:
    """The tags by which a run is found, and which state its conditions."""
    conditions = found.benchmark.conditions
    machine = conditions.fingerprint
    measured = Places(root).benchmarked(result.model, result.strategy)
    # Of the code that measured; the present one may differ.
    commit = conditions.commit or "none"
    tags = {
        "model": result.model,
        "strategy": result.strategy,
        "machine": f"{machine.device}, {machine.threads} threads",
        "target": target_name(machine.target),
        "fingerprint": machine.identity(),
        MACHINE: machine_of(machine),
        "measured": conditions.date,
        "git_commit": commit.removesuffix("+"),
        "git_changed": "true" if commit.endswith("+") else "false",
        "dvc_hash": " ".join(sorted(lock.hashes(measured).values())),
        MLFLOW_SOURCE_NAME: f"dvc repro benchmark@{result}",
        MLFLOW_SOURCE_TYPE: SourceType.to_string(SourceType.PROJECT),
        MLFLOW_RUN_NOTE: tables.benchmark_markdown(found.benchmark)[:_TEXT],
    }
    if found.benchmark.disturbed:
        tags[DISTURBED] = found.benchmark.disturbed
    return tags if commit == "none" else {**tags, MLFLOW_GIT_COMMIT: tags["git_commit"]}


def _parameters(
    root: Path, result: Result, found: tables.Result, lock: DvcLock, stages: Sequence[str]
) -> dict[str, str]:
    """The result's parameters, its model, and its machine."""
    flat = lock.parameters(stages, result.strategy)
    flatten(found.benchmark.conditions.fingerprint.model_dump(), "machine", flat)
    source = ImportReport.read(Places(root).imported(result.model))
    flatten(source.model_dump(include=_OF_MODEL, exclude_none=True), "model", flat)
    return flat


def _curve(shared: Path, began_ms: int) -> list[Metric]:
    """The model's estimated latency: one step for each second of tuning, with its last point."""
    if not (shared / Curve.file_name).is_file():
        return []
    points = {int(point.elapsed_s): point for point in Curve.read(shared).points}
    return [
        Metric(CURVE, it.estimated_latency_ms, began_ms + int(1000 * it.elapsed_s), second)
        for second, it in sorted(points.items())
    ]


def _gather(places: Places, result: Result, logs: Iterable[Path], into: Path) -> None:
    """Copy what is kept with a run: tables, plots, clusters, logs of tuning."""
    of = (result.model, result.strategy)
    folders = [places.selected(*of), places.tuned(*of), places.shared(*of)]
    folders += [places.fingerprint, places.compiled(*of), places.benchmarked(*of)]
    files = [file for folder in folders for file in _kept(folder)]
    # These folders also hold the model itself and its kernels, which are no results.
    files.append(places.imported(result.model) / ImportReport.file_name)
    files.append(places.tasks(result.model) / "tasks.json")
    kept = [(file, file.parent.name) for file in files] + [(log, "logs") for log in logs]
    for file, folder in kept:
        if file.is_file():
            (into / folder).mkdir(parents=True, exist_ok=True)
            shutil.copy(file, into / folder)


def _kept(directory: Path) -> list[Path]:
    """The files of a folder that are kept with a run."""
    return [file for file in sorted(directory.glob("*")) if file.suffix in _KEPT]


def _milliseconds(date: str) -> int:
    """Milliseconds since 1970, as MLflow has them, of a date in ISO format."""
    moment = datetime.fromisoformat(date)
    return int(1000 * (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


def record_comparison(root: Path, model: str) -> str:
    """Add the comparison of strategies to the selective result's run, once; say what was done.

    Raises
    ------
    InputError, MachineError
        As `record_result`.
    """
    results = {strategy: read_result(root, model, strategy) for strategy in COMPARED}
    comparison = comparison_of(root, model, results)
    if comparison is None:
        return f"{model}: no comparison of the results on disk"
    places, lock, store = Places(root), DvcLock(root), Store(root)
    run = store.recorded(lock.key(places.benchmarked(model, COMPARED[0])))
    if run is None:
        raise InputError(f"the {COMPARED[0]} result of {model} is not in MLflow: record it first")
    run_id, key = run.info.run_id, lock.key(places.compared(model))
    if run.data.tags.get(COMPARISON_TAG) != key:
        now = _milliseconds(comparison.conditions.date)
        headline = comparison.headline()
        metrics = [Metric(name, _shown(value), now, 0) for name, value in headline.items()]
        store.client.log_batch(run_id, metrics=metrics)
        store.client.log_text(run_id, model_page(root, model), PAGE)
        for file in _kept(places.compared(model)):
            store.client.log_artifact(run_id, str(file), "compare")
        store.client.set_tag(run_id, COMPARISON_TAG, key)
    return f"{model}: comparison is in MLflow: {store.place(run_id)}"
