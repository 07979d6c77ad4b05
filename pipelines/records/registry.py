"""Versions of a model in MLflow's registry, and which of them is the fastest."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from fewtune.artifacts import BenchmarkReport, Fingerprint
from fewtune.pipelines.dvc_repo.dag import Result
from fewtune.pipelines.records.conditions import is_same_model
from fewtune.report.change import Latency, changed
from fewtune.report.tables import target_name

# isort: split
from mlflow import MlflowClient
from mlflow.entities import RunData
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

CHAMPION = "champion"


def machine_of(fingerprint: Fingerprint) -> str:
    """A digest of the machine, its target and threads, without its software's versions.

    Results of one machine are compared with each other, also across versions.
    """
    parts = [fingerprint.device, fingerprint.logical_cores, fingerprint.threads]
    parts.append(target_name(fingerprint.target))
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def register(
    client: MlflowClient,
    result: Result,
    report: BenchmarkReport,
    ids: Mapping[str, Any],
) -> str:
    """Make a recorded result a version of its model; move the aliases if it is the fastest.

    Alias ``champion-MACHINE`` is the fastest version made for a machine. ``champion`` follows that
    of the machine for which it was first set. Both move to a version that is faster by more than
    the noise of both measurements, and to the first version of another model that got the name:
    a fast library of the old one is no result of the new one. They never move to a version whose
    latency was disturbed. ``ids`` are those of the record.

    Returns
    -------
    line : str
        What was done, for people.
    """
    with contextlib.suppress(MlflowException):
        # Usually the model exists; the next call reports any other error.
        client.create_registered_model(result.model)
    fingerprint = report.conditions.fingerprint
    machine = machine_of(fingerprint)
    recorded = client.get_run(ids["run_id"]).data
    latency, beside = Latency.of_run(recorded), report.speedup_over_onnxruntime
    # Everything else is in the run. The page's column shows some twenty letters of a description.
    tags = {
        "strategy": result.strategy,
        "fingerprint": fingerprint.identity(),
        "machine": machine,
        "latency_ms": f"{latency.median_ms:.6g}",
    }
    ratio = f", {beside.median:.2f} x onnxruntime" if beside else ""
    described = f"{result.strategy} tuning, {fingerprint.device}, {fingerprint.threads} threads"
    made = client.create_model_version(
        result.model,
        f"models:/{ids['model_id']}",
        tags=tags,
        description=f"{latency.median_ms:.3g} ms{ratio}; {described}",
        **ids,
    )
    own = f"{CHAMPION}-{machine}"
    if report.disturbed:
        return f"version {made.version} of {result.model}, disturbed: it becomes no champion"
    holder = _holder(client, result.model, own, recorded.params)
    if holder is not None and changed(Latency.of_run(holder[1]), latency).verdict != "faster":
        return f"version {made.version} of {result.model} (champion: {holder[0].version})"
    client.set_registered_model_alias(result.model, own, made.version)
    overall = _holder(client, result.model, CHAMPION, recorded.params)
    line = f"version {made.version} of {result.model}, its champion"
    if overall is not None and overall[0].tags.get("machine") != machine:
        return f"{line} for this machine and threads now ({CHAMPION}: {overall[0].version})"
    client.set_registered_model_alias(result.model, CHAMPION, made.version)
    return f"{line} now"


def _holder(
    client: MlflowClient, model: str, alias: str, parameters: Mapping[str, str]
) -> tuple[ModelVersion, RunData] | None:
    """The version with an alias and its record, if it is of this very model and not erased."""
    try:
        holder = client.get_model_version_by_alias(model, alias)
        recorded = client.get_run(str(holder.run_id)).data
    except MlflowException:
        return None
    return (holder, recorded) if is_same_model(recorded.params, parameters) else None
