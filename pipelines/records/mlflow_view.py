"""How MLflow's page opens: a table of runs whose columns say what a result is and how fast.

MLflow keeps a shared view of its page as a tag of the experiment, and opens it by a key in the
address. What it keeps there is JSON of its own; a page that does not understand it opens without.
"""

from __future__ import annotations

import json

_KIND = {"mlflow.experimentKind": "custom_model_development"}
_KEY = "fewtune"
_TAGS = ("model", "strategy", "machine")
_METRICS = (
    "tuning_s",
    "latency_ms",
    "onnxruntime_latency_ms",
    "times_onnxruntime",
    "used_time_pct",
    "achieved_perf_pct",
    "peak_pct",
    "trials",
)


def experiment_tags() -> dict[str, str]:
    """What the experiment is tagged with."""
    return {**_KIND, f"mlflow.sharedViewState.{_KEY}": json.dumps(_view(), sort_keys=True)}


def address(server: str, experiment_id: str) -> str:
    """The page's address at a server."""
    # Without the type it would open as the traces of a language model.
    return (
        f"{server.rstrip('/')}/#/experiments/{experiment_id}/runs"
        f"?workflowType=machine_learning&viewStateShareKey={_KEY}"
    )


def _view() -> dict[str, object]:
    columns = [f"tags.`{name}`" for name in _TAGS]
    columns += [f"metrics.`{name}`" for name in _METRICS]
    columns += ["attributes.`Models`"]
    return {
        "searchFilter": "",
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": columns,
        "columnOrder": [],
        "columnWidths": {},
        "runsExpanded": {},
        "runsPinned": [],
        "runsHidden": [],
        "runsVisibilityMap": {},
        "runsHiddenMode": "FIRST_10_RUNS",
        "viewMaximized": False,
        "runListHidden": False,
        "isAccordionReordered": False,
        "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True,
        "groupBy": None,
        "groupsExpanded": {},
        "autoRefreshEnabled": True,
        "globalLineChartConfig": {
            "xAxisKey": "step",
            "lineSmoothness": 0,
            "selectedXAxisMetricKey": "",
        },
    }
