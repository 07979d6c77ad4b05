"""Stage benchmark: untuned TVM, tuned TVM and onnxruntime, interleaved."""

from __future__ import annotations

from fewtune.artifacts import Metrics
from fewtune.benchmark.benchmark import benchmark_model
from fewtune.stages.command import Stage, main
from fewtune.stages.commit import commit
from fewtune.util.files import canonical_json, whole_directory, write_text
from fewtune.util.table import number


def run(stage: Stage) -> None:
    """Measure the model end to end and list its kernels."""
    places, model, of = stage.places, stage.model, stage.of
    folders = {
        "import_model": places.imported(model),
        "extract_tasks": places.tasks(model),
        "predict": places.predicted(*of),
        "select_tasks": places.selected(*of),
        "tune": places.tuned(*of),
        "share_schedules": places.shared(*of),
        "compile": places.compiled(*of),
    }
    with stage.measuring(), whole_directory(places.benchmarked(*of)) as directory:
        report = benchmark_model(
            folders, stage.fingerprint, stage.options, directory, commit=commit()
        )
    figures = Metrics.read(places.benchmarked(*of)).headline()
    write_text(places.figures(*of), canonical_json(figures))
    medians = ", ".join(f"{name} {number(it.median_ms)} ms" for name, it in report.variants.items())
    stage.say(f"{medians}{', disturbed' if report.disturbed else ''}")
    if report.disturbed:
        stage.say(f"disturbed: {report.disturbed}")


if __name__ == "__main__":
    main("benchmark", run, "model", "strategy")
