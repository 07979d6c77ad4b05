"""Records results in MLflow, one run for each, from the stages' output files, only once.

A stage that DVC takes from its cache does not run, so nothing is logged inside a stage.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from fewtune.artifacts import Comparison
from fewtune.errors import InputError
from fewtune.report import tables
from pipelines.checkout.results import read_comparison, read_result, read_results
from pipelines.dvc_repo.dag import Result
from pipelines.dvc_repo.dvc_lock import DvcLock
from pipelines.records.contents import (
    TEXT,
    curve,
    figures,
    kept,
    kept_files,
    milliseconds,
    parameters_of,
    shown,
    tags_of,
)
from pipelines.records.mlflow_model import save_model
from pipelines.records.recorded import remember
from pipelines.records.registry import register
from pipelines.records.tracking import TABLE_KEY, Store
from stages.params import COMPARED
from stages.paths import Places

# isort: split
from mlflow.entities import Metric, Param, RunTag

COMPARISON_TAG = "fewtune.comparison"
# MLflow's limits for a batch.
_METRICS, _PARAMS = 1000, 100


def record_finished(
    root: Path,
    result: Result,
    stages: Sequence[str],
    logs: Iterable[Path],
    warn: Callable[[str], None],
) -> str:
    """Record a result or, without a strategy, a model's comparison; remember that.

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
        A model with a strategy, with its outputs on disk.
    stages : sequence of str
        The stages that made it, as dvc.lock names them: their parameters are recorded.
    logs : iterable of Path
        Files with the output of those stages, if it was kept.

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
    ended_ms = milliseconds(found.benchmark.conditions.date)
    span_ms = (ended_ms - int(1000 * found.metrics.tuning_s), ended_ms)
    with store.recording(key, str(result), span_ms=span_ms) as run_id:
        client = store.client
        tags = tags_of(root, result, found, lock)
        client.log_batch(run_id, tags=[RunTag(name, value) for name, value in tags.items()])
        parameters = parameters_of(root, result, found, lock, stages)
        pairs = [Param(name, value[:TEXT]) for name, value in sorted(parameters.items())]
        for start in range(0, len(pairs), _PARAMS):
            client.log_batch(run_id, params=pairs[start : start + _PARAMS])
        with store.model(run_id, str(result), tags) as model_id:
            metrics = [
                Metric(name, float(value), ended_ms, 0, model_id=model_id, run_id=run_id)
                for name, value in figures(found).items()
            ]
            metrics += curve(root, result, span_ms[0])
            for start in range(0, len(metrics), _METRICS):
                client.log_batch(run_id, metrics=metrics[start : start + _METRICS])
            for file, folder in kept_files(root, result):
                client.log_artifact(run_id, str(file), folder)
            for log in logs:
                if log.is_file():
                    client.log_artifact(run_id, str(log), "logs")
            with tempfile.TemporaryDirectory(dir=_scratch(places)) as scratch:
                saved = Path(scratch) / "model"
                ids = {"run_id": run_id, "model_id": model_id}
                save_model(root, result, found.benchmark.conditions.fingerprint, saved, **ids)
                client.log_model_artifacts(model_id, str(saved))
            version = register(client, result, found.benchmark, model_id, run_id, parameters)
    return f"{result} is recorded in MLflow: run {run_id}, {version}"


def _scratch(places: Places) -> Path:
    """A folder with room for a copy of a library."""
    places.scratch.mkdir(parents=True, exist_ok=True)
    return places.scratch


def record_comparison(root: Path, model: str, complain: Callable[[str], None]) -> str:
    """Add the comparison of strategies to the selective result's run, once.

    The table over all models is recorded again with it.

    Parameters
    ----------
    root : Path
        The checkout.
    model : str
    complain : callable
        Gets a line about each result that is missing in the table.

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
        now = milliseconds(comparison.conditions.date)
        headline = comparison.headline()
        metrics = [Metric(name, shown(value), now, 0) for name, value in headline.items()]
        store.client.log_batch(run_id, metrics=metrics)
        for file in kept(places.compared(model)):
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
        columns = {
            name: [shown(value) if isinstance(value, float) else value for value in values]
            for name, values in tables.comparison_columns(comparisons).items()
        }
        store.client.log_table(run_id, columns, "results.json")
        store.client.log_text(run_id, text, "results.md")
        for name, value in _means(comparisons).items():
            store.client.log_metric(run_id, name, shown(value))
    return f"results table: run {run_id}"


def _means(comparisons: Sequence[Comparison]) -> dict[str, float]:
    number = len(comparisons)
    return {
        "models": float(number),
        "mean_used_time_pct": sum(each.used_time_pct for each in comparisons) / number,
        "mean_achieved_perf_pct": sum(each.achieved_perf_pct for each in comparisons) / number,
        "least_achieved_perf_pct": min(each.achieved_perf_pct for each in comparisons),
    }
