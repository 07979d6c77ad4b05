"""Stage compare: selective against full tuning of one model, measured side by side."""

from __future__ import annotations

from typing import Any

from fewtune.artifacts import BenchmarkReport, Curve, Fingerprint, Metrics
from fewtune.benchmark.compare import Result, compare_strategies
from fewtune.stages.command import main, measuring, say
from fewtune.stages.commit import commit
from fewtune.stages.params import COMPARED, load_section
from fewtune.stages.paths import Places
from fewtune.util.files import canonical_json, whole_directory, write_text


def run(model: str) -> None:
    """Measure the libraries of both strategies side by side."""
    options = load_section("compare", model=model)
    places = Places()
    fingerprint = Fingerprint.read(places.fingerprint)
    measured = {strategy: places.benchmarked(model, strategy) for strategy in COMPARED}
    with (
        measuring(fingerprint, "compare", model),
        whole_directory(places.compared(model)) as directory,
    ):
        comparison = compare_strategies(
            places.imported(model),
            {
                strategy: Result(
                    places.compiled(model, strategy),
                    Metrics.read(folder),
                    BenchmarkReport.read(folder),
                )
                for strategy, folder in measured.items()
            },
            fingerprint,
            options,
            directory,
            commit=commit(),
        )
        write_text(directory / "curves.json", canonical_json(_curves(places, model)))
    write_text(places.figures(model, "compare"), canonical_json(comparison.headline()))
    say(
        f"{model}: {comparison.achieved_perf_pct:.1f} % of the performance in "
        f"{comparison.used_time_pct:.1f} % of the time"
    )


def _curves(places: Places, model: str) -> list[dict[str, Any]]:
    """The estimated latency over tuning time of both strategies, for one plot."""
    return [
        {"strategy": strategy, **point.model_dump()}
        for strategy in COMPARED
        for point in Curve.read(places.shared(model, strategy)).points
    ]


if __name__ == "__main__":
    main("compare", run)
