"""Stage compare: selective against full tuning of one model, measured side by side."""

from __future__ import annotations

from fewtune.artifacts import BenchmarkReport, Fingerprint, Metrics
from fewtune.benchmark.compare import compare_strategies
from fewtune.util.files import canonical_json, whole_directory, write_text
from stages.command import main, measuring, say
from stages.commit import commit
from stages.params import COMPARED, load_section
from stages.paths import Places


def run(model: str) -> None:
    """Measure the libraries of both strategies side by side."""
    options = load_section("compare")
    places = Places()
    fingerprint = Fingerprint.read(places.fingerprint)
    measured = {strategy: places.benchmarked(model, strategy) for strategy in COMPARED}
    with (
        measuring(fingerprint, "compare", model),
        whole_directory(places.compared(model)) as directory,
    ):
        comparison = compare_strategies(
            places.imported(model),
            {strategy: places.compiled(model, strategy) for strategy in COMPARED},
            {strategy: Metrics.read(folder) for strategy, folder in measured.items()},
            {strategy: BenchmarkReport.read(folder) for strategy, folder in measured.items()},
            fingerprint,
            options,
            directory,
            commit=commit(),
        )
        # Flat, so that `dvc metrics show` has figures only.
        others = {
            "model",
            "conditions",
            "achieved_perf_by_process_pct",
            "kernels",
            "library_sha256",
        }
        figures = comparison.model_dump(exclude=others, exclude_none=True)
        write_text(directory / "metrics.json", canonical_json(figures))
    say(
        f"{model}: {comparison.achieved_perf_pct:.1f} % of the performance in "
        f"{comparison.used_time_pct:.1f} % of the time"
    )


if __name__ == "__main__":
    main("compare", run)
