"""The first view of MLflow's page: a table of runs with what a result is and how fast.

MLflow keeps a shared view of its page as a tag of the experiment, and opens it by a key in the
address. The tag is JSON in MLflow's own format; a page that cannot read it opens without the view.
"""

from __future__ import annotations

import json

_KIND = {"mlflow.experimentKind": "custom_model_development"}
_KEY = "fewtune"
# Columns with their widths in pixels, in order; the visible part shows six or seven.
_COLUMNS = {
    "metrics.`latency_ms`": 95,
    "metrics.`times_onnxruntime`": 145,
    "metrics.`tuning_s`": 85,
    "metrics.`used_time_pct`": 120,
    "metrics.`achieved_perf_pct`": 145,
    "metrics.`onnxruntime_latency_ms`": 185,
    "metrics.`peak_pct`": 85,
    "metrics.`trials`": 70,
    "tags.`model`": 150,
    "tags.`strategy`": 90,
    "tags.`machine`": 260,
    "attributes.`Models`": 200,
}


def experiment_tags() -> dict[str, str]:
    """The tags of the experiment."""
    # The page fills in what else belongs to a view.
    view = {
        "selectedColumns": list(_COLUMNS),
        "columnOrder": list(_COLUMNS),
        "columnWidths": _COLUMNS,
    }
    return {**_KIND, f"mlflow.sharedViewState.{_KEY}": json.dumps(view, sort_keys=True)}


def address(server: str, experiment_id: str) -> str:
    """The page's address at a server."""
    # Without the type the page opens as the traces of a language model.
    return (
        f"{server.rstrip('/')}/#/experiments/{experiment_id}/runs"
        f"?workflowType=machine_learning&viewStateShareKey={_KEY}"
    )
