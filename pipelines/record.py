"""Results in MLflow, one run each, from the stages' output files, once however often they run.

A stage that DVC takes from its cache does not run, so nothing is logged inside a stage.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from fewtune.artifacts import Comparison, Curve, ImportReport
from fewtune.errors import InputError
from fewtune.report import tables
from pipelines.dag import Result
from pipelines.dvc_lock import DvcLock, flatten
from pipelines.recorded import remember
from pipelines.results import read_comparison, read_result, read_results
from pipelines.tracking import TABLE_KEY, Store
from stages.params import COMPARED
from stages.paths import Places

# isort: split
from mlflow.entities import Metric, Param, RunTag

CURVE = "estimated_latency_ms"
COMPARISON_TAG = "fewtune.comparison"
COMPARED_METRICS = (
    "used_time_pct",
    "achieved_perf_pct",
    "achieved_perf_p10_pct",
    "achieved_perf_p90_pct",
)
# MLflow's limits, and how large a file may be that is kept with a run.
_METRICS, _PARAMS, _TEXT = 1000, 100, 6000
_LARGEST_BYTES = 50 * 2**20
_KEPT = {".json", ".csv", ".md", ".png", ".so"}


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
    with store.recording(key, str(result)) as run_id:
        client = store.client
        tags = _tags(root, result, found, lock)
        client.log_batch(run_id, tags=[RunTag(name, value) for name, value in tags.items()])
        parameters = _parameters(root, result, found, lock, stages)
        pairs = [Param(name, value[:_TEXT]) for name, value in sorted(parameters.items())]
        for start in range(0, len(pairs), _PARAMS):
            client.log_batch(run_id, params=pairs[start : start + _PARAMS])
        ended_ms = _milliseconds(found.benchmark.conditions.date)
        metrics = [
            Metric(name, float(value), ended_ms, 0)
            for name, value in found.metrics.figures().items()
        ]
        metrics += _curve(root, result, ended_ms - int(1000 * found.metrics.tuning_s))
        for start in range(0, len(metrics), _METRICS):
            client.log_batch(run_id, metrics=metrics[start : start + _METRICS])
        for file, folder in _files(root, result):
            client.log_artifact(run_id, str(file), folder)
        for log in logs:
            if log.is_file():
                client.log_artifact(run_id, str(log), "logs")
    left = [file.name for file in _large(places.compiled(result.model, result.strategy))]
    told = f"; too large to be kept there: {', '.join(left)}" if left else ""
    return f"{result} is recorded in MLflow: run {run_id}{told}"


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
        table = tables.comparison_table(comparisons)
        store.client.log_table(run_id, table.columns(), "results.json")
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
    measured = Places(root).benchmarked(result.model, result.strategy)
    commit = conditions.commit or "none"
    return {
        "model": result.model,
        "strategy": result.strategy,
        "target": tables.target_name(conditions.fingerprint.target),
        "fingerprint": conditions.fingerprint.identity(),
        "measured": conditions.date,
        # Of the code that measured; that of this moment may be another one.
        "git_commit": commit.removesuffix("+"),
        "git_changed": "true" if commit.endswith("+") else "false",
        "left_out": " ".join(
            str(file) for file in _large(Places(root).compiled(result.model, result.strategy))
        ),
        "dvc_hash": " ".join(sorted(lock.hashes(measured).values())),
    }


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
    """What is kept with a run: tables, plots, clusters, logs of tuning, a library if small."""
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


def _large(directory: Path) -> list[Path]:
    """What is not kept with a run for its size."""
    return [
        file
        for file in sorted(directory.glob("*"))
        if file.suffix in _KEPT and file.stat().st_size > _LARGEST_BYTES
    ]


def _kept(directory: Path) -> list[Path]:
    return [
        file
        for file in sorted(directory.glob("*"))
        if file.suffix in _KEPT and file.stat().st_size <= _LARGEST_BYTES
    ]


def _milliseconds(date: str) -> int:
    moment = datetime.fromisoformat(date)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(1000 * moment.timestamp())
