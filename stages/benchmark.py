"""Stage benchmark: untuned TVM, tuned TVM and onnxruntime, interleaved."""

from __future__ import annotations

from fewtune.artifacts import Fingerprint, Metrics
from fewtune.benchmark.benchmark import benchmark_model
from fewtune.benchmark.result import ResultFolders
from fewtune.stages.command import main, measuring, say
from fewtune.stages.commit import commit
from fewtune.stages.params import load_section
from fewtune.stages.paths import Places
from fewtune.util.files import canonical_json, whole_directory, write_text
from fewtune.util.table import number


def run(model: str, strategy: str) -> None:
    """Measure the model end to end and list its kernels."""
    options = load_section("benchmark", model=model)
    places = Places()
    fingerprint = Fingerprint.read(places.fingerprint)
    with (
        measuring(fingerprint, "benchmark", model, strategy),
        whole_directory(places.benchmarked(model, strategy)) as directory,
    ):
        report = benchmark_model(
            ResultFolders(
                places.imported(model),
                places.tasks(model),
                places.predicted(model, strategy),
                places.selected(model, strategy),
                places.tuned(model, strategy),
                places.shared(model, strategy),
                places.compiled(model, strategy),
            ),
            fingerprint,
            options,
            directory,
            commit=commit(),
        )
    figures = Metrics.read(places.benchmarked(model, strategy)).headline()
    write_text(places.figures(model, strategy), canonical_json(figures))
    medians = ", ".join(f"{name} {number(it.median_ms)} ms" for name, it in report.variants.items())
    say(f"{model} ({strategy}): {medians}{', disturbed' if report.disturbed else ''}")
    if report.disturbed:
        say(f"disturbed: {report.disturbed}")


if __name__ == "__main__":
    main("benchmark", run)
