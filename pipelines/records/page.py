"""The HTML page of a model: results on disk beside those recorded earlier."""

from __future__ import annotations

from pathlib import Path

from fewtune.artifacts import Curve
from fewtune.errors import MachineError
from fewtune.pipelines.checkout.results import read_results
from fewtune.pipelines.records.tracking import DISTURBED, Store
from fewtune.report.page import Page
from fewtune.selection.heat_map import PNG
from fewtune.stages.params import COMPARED
from fewtune.stages.paths import Places
from fewtune.util.table import Table, number

# Earlier results that the page lists.
_MOST_EARLIER = 30
_FIGURES = ("latency_ms", "latency_p10_ms", "latency_p90_ms", "times_onnxruntime", "tuning_s")


def model_page(root: Path, model: str) -> str:
    """The page of a model with a result on disk."""
    places = Places(root)
    results = read_results(root, lambda _: None, [model])
    curves = {}
    for each in results:
        folder = places.shared(model, each.strategy)
        if (folder / Curve.file_name).is_file():
            curves[each.strategy] = Curve.read(folder)
    overlap = places.selected(model, COMPARED[0]) / PNG
    png = overlap.read_bytes() if overlap.is_file() else None
    return Page(results, curves, png, _earlier(root, model)).html()


def _earlier(root: Path, model: str) -> Table | None:
    """Recorded results of the model; None where there is none, or MLflow cannot be reached."""
    try:
        runs = [run for run in Store(root).results() if run.data.tags["model"] == model]
    except MachineError:
        return None
    headings = ["measured", "strategy", "machine", "latency ms", "p10 ms", "p90 ms"]
    headings += ["x over onnxruntime", "tuning s", "commit", ""]
    rows = [
        [
            run.data.tags.get("measured", ""),
            run.data.tags["strategy"],
            run.data.tags.get("machine", ""),
            *(number(run.data.metrics.get(name)) for name in _FIGURES),
            run.data.tags.get("git_commit", "")[:8],
            "disturbed" if DISTURBED in run.data.tags else "",
        ]
        for run in runs[:_MOST_EARLIER]
    ]
    return Table(headings, rows, frozenset({0, 1, 2, 8, 9})) if rows else None
