"""The recorded parts of a result: figures, tags, parameters, the curve of tuning, files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from fewtune.artifacts import Curve, ImportReport
from fewtune.report import kernel_tables, tables
from fewtune.report.conditions import target_name
from pipelines.dvc_repo.dag import Result
from pipelines.dvc_repo.dvc_lock import DvcLock, flatten
from pipelines.records.noise import Latency
from pipelines.records.registry import machine_of
from pipelines.records.tracking import MACHINE
from stages.paths import Places

# isort: split
from mlflow.entities import Metric, SourceType
from mlflow.utils.mlflow_tags import (
    MLFLOW_GIT_COMMIT,
    MLFLOW_RUN_NOTE,
    MLFLOW_SOURCE_NAME,
    MLFLOW_SOURCE_TYPE,
)

CURVE = "estimated_latency_ms"
# MLflow's limit for a text.
TEXT = 6000
# The library is part of the MLflow model.
_KEPT = {".json", ".csv", ".md", ".png"}
_OF_MODEL = {
    "source",
    "source_sha256",
    "binding",
    "opset",
    "parameters",
    "layout",
    "transposes",
}


def figures(found: tables.Result) -> dict[str, float]:
    """The columns of MLflow's table; all other measurements are in the artifacts."""
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
    return {name: shown(value) for name, value in figures.items() if value is not None}


def shown(value: float) -> float:
    """A figure with as many digits as a column of MLflow's page shows."""
    return float(f"{value:.5g}")


def tags_of(root: Path, result: Result, found: tables.Result, lock: DvcLock) -> dict[str, str]:
    """The tags by which a run is found, and which state its conditions."""
    conditions = found.benchmark.conditions
    machine = conditions.fingerprint
    measured = Places(root).benchmarked(result.model, result.strategy)
    commit = conditions.commit or "none"
    tags = {
        "model": result.model,
        "strategy": result.strategy,
        "machine": f"{machine.device}, {machine.threads} threads",
        "target": target_name(machine.target),
        "fingerprint": machine.identity(),
        MACHINE: machine_of(machine),
        "measured": conditions.date,
        # The commit of the code that measured; the present one may differ.
        "git_commit": commit.removesuffix("+"),
        "git_changed": "true" if commit.endswith("+") else "false",
        "dvc_hash": " ".join(sorted(lock.hashes(measured).values())),
        MLFLOW_SOURCE_NAME: f"dvc repro benchmark@{result}",
        MLFLOW_SOURCE_TYPE: SourceType.to_string(SourceType.PROJECT),
        MLFLOW_RUN_NOTE: kernel_tables.benchmark_markdown(found.benchmark)[:TEXT],
    }
    if commit != "none":
        tags[MLFLOW_GIT_COMMIT] = commit.removesuffix("+")
    return tags


def parameters_of(
    root: Path, result: Result, found: tables.Result, lock: DvcLock, stages: Sequence[str]
) -> dict[str, str]:
    """The result's parameters, its model, and its machine."""
    flat = lock.parameters(stages, result.strategy)
    flatten(found.benchmark.conditions.fingerprint.model_dump(), "machine", flat)
    imported = Places(root).imported(result.model)
    if (imported / ImportReport.file_name).is_file():
        source = ImportReport.read(imported).model_dump(include=_OF_MODEL, exclude_none=True)
        flatten(source, "model", flat)
    return flat


def curve(root: Path, result: Result, began_ms: int) -> list[Metric]:
    """The model's estimated latency: one step for each second of tuning, with its last point."""
    places = Places(root)
    # Sharing continues the curve of tuning; its file has both.
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


def kept_files(root: Path, result: Result) -> Iterable[tuple[Path, str]]:
    """The files kept with a run: tables, plots, clusters, logs of tuning."""
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
        for file in kept(directory):
            yield file, directory.name


def kept(directory: Path) -> list[Path]:
    """The files of a folder that are kept with a run."""
    return [file for file in sorted(directory.glob("*")) if file.suffix in _KEPT]


def milliseconds(date: str) -> int:
    """Milliseconds since 1970, as MLflow has them, of a date in ISO format."""
    moment = datetime.fromisoformat(date)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(1000 * moment.timestamp())
