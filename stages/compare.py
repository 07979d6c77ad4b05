"""Stage compare: selective against full tuning of one model, measured side by side."""

from __future__ import annotations

from typing import Any

from fewtune.artifacts import BenchmarkReport, Curve, Metrics
from fewtune.benchmark.compare import compare_strategies
from fewtune.report.tables import Result
from fewtune.stages.command import Stage, main
from fewtune.stages.commit import commit
from fewtune.stages.params import COMPARED
from fewtune.util.files import canonical_json, whole_directory, write_text


def run(stage: Stage) -> None:
    """Measure the libraries of both strategies side by side."""
    places, model = stage.places, stage.model
    results = {}
    for strategy in COMPARED:
        folder = places.benchmarked(model, strategy)
        result = Result(BenchmarkReport.read(folder), Metrics.read(folder))
        results[strategy] = places.compiled(model, strategy), result
    with stage.measuring(), whole_directory(places.compared(model)) as directory:
        comparison = compare_strategies(
            places.imported(model),
            results,
            stage.fingerprint,
            stage.options,
            directory,
            commit=commit(),
        )
        write_text(directory / "curves.json", canonical_json(_curves(stage)))
    write_text(places.figures(model, "compare"), canonical_json(comparison.headline()))
    stage.say(
        f"{comparison.achieved_perf_pct:.1f} % of the performance in "
        f"{comparison.used_time_pct:.1f} % of the time"
    )


def _curves(stage: Stage) -> list[dict[str, Any]]:
    """The estimated latency over tuning time of both strategies, for one plot."""
    return [
        {"strategy": strategy, **point.model_dump()}
        for strategy in COMPARED
        for point in Curve.read(stage.places.shared(stage.model, strategy)).points
    ]


if __name__ == "__main__":
    main("compare", run, "model")
