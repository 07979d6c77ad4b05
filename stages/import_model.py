"""Stage import_model: ONNX to lowered Relax, verified untuned against onnxruntime."""

from __future__ import annotations

from fewtune.model.import_model import ImportJob, import_apart
from fewtune.options import ImportOptions
from fewtune.progress.progress import Steps
from fewtune.stages.command import Stage, main
from fewtune.stages.params import load_section
from fewtune.util.files import whole_directory


def run(stage: Stage) -> None:
    """Import a registered model and refuse it if its outputs differ from onnxruntime's."""
    growth = load_section("compile", model=stage.model).most_growth
    with whole_directory(stage.places.imported(stage.model)) as directory:
        job = ImportJob(
            name=stage.model,
            models=stage.places.models,
            target=stage.fingerprint.target,
            threads=stage.fingerprint.threads,
            options=ImportOptions(**dict(stage.options), most_growth=growth),
            directory=directory,
        )
        with Steps(f"{stage.model}: import") as tell:
            report = import_apart(job, tell)
    stage.say(
        f"{report.nodes} nodes, {report.nodes_simplified} simplified, "
        f"{report.layout} ({report.layout_note}), {report.transposes} transposes, "
        f"{report.winograd} convolutions by Winograd's transforms, "
        f"{report.padded} with filters padded, "
        f"{report.allowances:.2g} of the allowance used, "
        f"relative error {report.max_relative_error:.1e}"
        + "".join(f"; left out: {step}" for step in report.left_out)
    )


if __name__ == "__main__":
    main("import_model", run, "model")
