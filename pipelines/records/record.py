"""Results in MLflow, one run each, from the stages' output files, once however often they run.

A stage that DVC takes from its cache does not run, so nothing is logged inside a stage.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from fewtune.artifacts import Comparison, Curve, ImportReport
from fewtune.errors import InputError
from fewtune.report import kernel_tables, tables
from fewtune.report.noise import Latency
from pipelines.checkout.results import read_comparison, read_result, read_results
from pipelines.dvc_repo.dag import Result
from pipelines.dvc_repo.dvc_lock import DvcLock, flatten
from pipelines.records.mlflow_model import save_model
from pipelines.records.recorded import remember
from pipelines.records.registry import machine_of, register
from pipelines.records.tracking import MACHINE, TABLE_KEY, Store
from stages.params import COMPARED
from stages.paths import Places

# isort: split
from mlflow.entities import Metric, Param, RunTag, SourceType
from mlflow.utils.mlflow_tags import (
    MLFLOW_GIT_COMMIT,
    MLFLOW_RUN_NOTE,
    MLFLOW_SOURCE_NAME,
    MLFLOW_SOURCE_TYPE,
)

CURVE = "estimated_latency_ms"
COMPARISON_TAG = "fewtune.comparison"
COMPARED_METRICS = (
    "used_time_pct",
    "achieved_perf_pct",
    "achieved_perf_p10_pct",
    "achieved_perf_p90_pct",
)
# MLflow's limits.
_METRICS, _PARAMS, _TEXT = 1000, 100, 6000
# The library is part of the MLflow model.
_KEPT = {".json", ".csv", ".md", ".png"}


def record_finished(
    root: Path,
    result: Result,
    stages: Sequence[str],
    logs: Iterable[Path],
    warn: Callable[[str], None],
) -> str:
    """Record a result or, without a strategy, what joins a model's results; remember that.

    Parameters, returns and errors as `record_result` and `record_comparison`.
    """
    if result.strategy:
        line = record_result(root, result, stages, logs)
    else:
        line = record_comparison(root, result.model, warn)
    remember(root, result)
    return line


def record_result(root: Path, result: Result, stages: Sequence[str], logs: Iterable[Path]) -> str:
    """Record a result, unless this very result is recorded.

    Parameters
    ----------
    root : Path
        The checkout.
    result : Result
        A model under a strategy, with its outputs on disk.
    stages : sequence of str
        The stages that made it, as dvc.lock names them: their parameters are recorded.
    logs : iterable of Path
        Output of those stages, as far as it was kept.

    Returns
    -------
    line : str
        What was done, for people.

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
    measured = places.benchmarked(result.model, result.strategy)
    key = lock.key(measured)
    recorded = store.recorded(key)
    if recorded is not None:
        return f"{result} is in MLflow already: run {recorded.info.run_id}"
    ended_ms = _milliseconds(found.benchmark.conditions.date)
    span_ms = (ended_ms - int(1000 * found.metrics.tuning_s), ended_ms)
    with store.recording(key, str(result), span_ms=span_ms) as run_id:
        client = store.client
        tags = _tags(root, result, found, lock)
        client.log_batch(run_id, tags=[RunTag(name, value) for name, value in tags.items()])
        parameters = _parameters(root, result, found, lock, stages)
        pairs = [Param(name, value[:_TEXT]) for name, value in sorted(parameters.items())]
        for start in range(0, len(pairs), _PARAMS):
            client.log_batch(run_id, params=pairs[start : start + _PARAMS])
        with store.model(run_id, str(result), tags) as model_id:
            metrics = [
                Metric(name, float(value), ended_ms, 0, model_id=model_id, run_id=run_id)
                for name, value in _figures(found).items()
            ]
            metrics += _curve(root, result, span_ms[0])
            for start in range(0, len(metrics), _METRICS):
                client.log_batch(run_id, metrics=metrics[start : start + _METRICS])
            for file, folder in _files(root, result):
                client.log_artifact(run_id, str(file), folder)
            for log in logs:
                if log.is_file():
                    client.log_artifact(run_id, str(log), "logs")
            with tempfile.TemporaryDirectory(dir=_scratch(places)) as scratch:
                saved = Path(scratch) / "model"
                ids = {"run_id": run_id, "model_id": model_id}
                save_model(root, result, found.benchmark.conditions.fingerprint, saved, **ids)
                client.log_model_artifacts(model_id, str(saved))
            version = register(client, result, found.benchmark, model_id, run_id)
    return f"{result} is recorded in MLflow: run {run_id}, {version}"


def _scratch(places: Places) -> Path:
    """Where a copy of a library has room, whatever its size."""
    places.scratch.mkdir(parents=True, exist_ok=True)
    return places.scratch


def _figures(found: tables.Result) -> dict[str, float]:
    """The columns of MLflow's table; everything else that was measured is among the artifacts."""
    tuned, metrics = Latency.of(found.benchmark), found.metrics
    figures: dict[str, float | None] = {
        **metrics.headline(),
        "latency_p10_ms": tuned.p10_ms,
        "latency_p90_ms": tuned.p90_ms,
        "openvino_latency_ms": metrics.openvino_latency_ms,
        "tasks": metrics.tasks,
        "representatives": metrics.representatives,
        "max_relative_error": metrics.max_relative_error,
    }
    # As many digits as a column shows.
    return {name: float(f"{value:.5g}") for name, value in figures.items() if value is not None}


def record_comparison(root: Path, model: str, complain: Callable[[str], None]) -> str:
    """Add what the comparison of strategies found to the selective result's run, once.

    The table over all models is recorded anew with it.

    Parameters
    ----------
    root : Path
        The checkout.
    model : str
    complain : callable
        Gets a line about each result that the table cannot have.

    Returns
    -------
    line : str
        What was done, for people.

    Raises
    ------
    InputError, MachineError
        As `record_result`.
    """
    comparison = read_comparison(root, model)
    if comparison is None:
        return f"{model}: no comparison of the results on disk"
    places, lock, store = Places(root), DvcLock(root), Store(root)
    run = store.recorded(lock.key(places.benchmarked(model, COMPARED[0])))
    if run is None:
        raise InputError(f"the {COMPARED[0]} result of {model} is not in MLflow: record it first")
    run_id, key = run.info.run_id, lock.key(places.compared(model))
    if run.data.tags.get(COMPARISON_TAG) != key:
        now = _milliseconds(comparison.conditions.date)
        figures = comparison.model_dump()
        store.client.log_batch(
            run_id, metrics=[Metric(name, figures[name], now, 0) for name in COMPARED_METRICS]
        )
        for file in _kept(places.compared(model)):
            store.client.log_artifact(run_id, str(file), "compare")
        store.client.set_tag(run_id, COMPARISON_TAG, key)
    table = record_table(root, store, complain)
    return f"{model}: comparison is in MLflow: run {run_id}; {table}"


def record_table(root: Path, store: Store, complain: Callable[[str], None]) -> str:
    """Record the results table over all models that were compared, if it changed."""
    comparisons = tables.distinct_comparisons(read_results(root, complain))
    if not comparisons:
        return "no results table: no model was compared"
    text = tables.comparisons_markdown(comparisons)
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    recorded = store.recorded(key, TABLE_KEY)
    if recorded is not None:
        return f"results table unchanged: run {recorded.info.run_id}"
    with store.recording(key, "results-table", TABLE_KEY) as run_id:
        store.client.log_table(run_id, tables.comparison_columns(comparisons), "results.json")
        store.client.log_text(run_id, text, "results.md")
        for name, value in _means(comparisons).items():
            store.client.log_metric(run_id, name, value)
    return f"results table: run {run_id}"


def _means(comparisons: Sequence[Comparison]) -> dict[str, float]:
    number = len(comparisons)
    return {
        "models": float(number),
        "mean_used_time_pct": sum(each.used_time_pct for each in comparisons) / number,
        "mean_achieved_perf_pct": sum(each.achieved_perf_pct for each in comparisons) / number,
        "least_achieved_perf_pct": min(each.achieved_perf_pct for each in comparisons),
    }


def _tags(root: Path, result: Result, found: tables.Result, lock: DvcLock) -> dict[str, str]:
    conditions = found.benchmark.conditions
    machine = conditions.fingerprint
    measured = Places(root).benchmarked(result.model, result.strategy)
    commit = conditions.commit or "none"
    tags = {
        "model": result.model,
        "strategy": result.strategy,
        "machine": f"{machine.device}, {machine.threads} threads",
        "target": tables.target_name(machine.target),
        "fingerprint": machine.identity(),
        MACHINE: machine_of(machine),
        "measured": conditions.date,
        # Of the code that measured; that of this moment may be another one.
        "git_commit": commit.removesuffix("+"),
        "git_changed": "true" if commit.endswith("+") else "false",
        "dvc_hash": " ".join(sorted(lock.hashes(measured).values())),
        MLFLOW_SOURCE_NAME: f"dvc repro benchmark@{result}",
        MLFLOW_SOURCE_TYPE: SourceType.to_string(SourceType.PROJECT),
        MLFLOW_RUN_NOTE: kernel_tables.benchmark_markdown(found.benchmark)[:_TEXT],
    }
    if commit != "none":
        tags[MLFLOW_GIT_COMMIT] = commit.removesuffix("+")
    return tags


def _parameters(
    root: Path, result: Result, found: tables.Result, lock: DvcLock, stages: Sequence[str]
) -> dict[str, str]:
    """All that was set for the result, the model it was made of, the machine it ran on."""
    flat = lock.parameters(stages, result.strategy)
    flatten(found.benchmark.conditions.fingerprint.model_dump(), "machine", flat)
    imported = Places(root).imported(result.model)
    if (imported / ImportReport.file_name).is_file():
        source = ImportReport.read(imported).model_dump(
            include={"source", "source_sha256", "opset", "parameters", "layout", "transposes"}
        )
        flatten(source, "model", flat)
    return flat


def _curve(root: Path, result: Result, began_ms: int) -> list[Metric]:
    """The model's estimated latency, a step a second of tuning: the last point of each."""
    places = Places(root)
    # Sharing goes on with the curve of tuning; its file has both.
    for directory in (
        places.shared(result.model, result.strategy),
        places.tuned(result.model, result.strategy),
    ):
        if (directory / Curve.file_name).is_file():
            points = {int(point.elapsed_s): point for point in Curve.read(directory).points}
            return [
                Metric(
                    CURVE,
                    point.estimated_latency_ms,
                    began_ms + int(1000 * point.elapsed_s),
                    second,
                )
                for second, point in sorted(points.items())
            ]
    return []


def _files(root: Path, result: Result) -> Iterable[tuple[Path, str]]:
    """What is kept with a run: tables, plots, clusters, logs of tuning."""
    places, of = Places(root), (result.model, result.strategy)
    # These folders also hold the model itself and its kernels, which are no results.
    for directory, names in (
        (places.fingerprint, {".json"}),
        (places.imported(result.model), {ImportReport.file_name}),
        (places.tasks(result.model), {"tasks.json", "tasks.md"}),
    ):
        for file in sorted(directory.glob("*")):
            if file.name in names or file.suffix in names:
                yield file, directory.name
    for directory in (
        places.selected(*of),
        places.tuned(*of),
        places.shared(*of),
        places.compiled(*of),
        places.benchmarked(*of),
    ):
        for file in _kept(directory):
            yield file, directory.name


def _kept(directory: Path) -> list[Path]:
    return [file for file in sorted(directory.glob("*")) if file.suffix in _KEPT]


def _milliseconds(date: str) -> int:
    moment = datetime.fromisoformat(date)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(1000 * moment.timestamp())
