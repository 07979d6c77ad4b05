"""Stage import_model: ONNX to lowered Relax, verified untuned against onnxruntime."""

from __future__ import annotations

from fewtune.artifacts import Fingerprint
from fewtune.model.import_apart import import_apart
from fewtune.model.import_options import ImportOptions
from fewtune.stages.command import main, say
from fewtune.stages.params import load_section
from fewtune.stages.paths import Places
from fewtune.util.files import whole_directory


def run(model: str) -> None:
    """Import a registered model and refuse it if its outputs differ from onnxruntime's."""
    section = load_section("import_model", model=model)
    options = ImportOptions.of(section, load_section("compile", model=model).most_growth)
    places = Places()
    fingerprint = Fingerprint.read(places.fingerprint)
    with whole_directory(places.imported(model)) as directory:
        report = import_apart(
            model,
            places.models,
            fingerprint.target,
            fingerprint.threads,
            options,
            directory,
        )
    say(
        f"{model}: {report.nodes} nodes, {report.nodes_simplified} simplified, "
        f"{report.layout} ({report.layout_note}), {report.transposes} transposes, "
        f"{report.winograd} convolutions by Winograd's transforms, "
        f"{report.padded} with filters padded, "
        f"{report.allowances:.2g} of the allowance used, "
        f"relative error {report.max_relative_error:.1e}"
        + "".join(f"; left out: {step}" for step in report.left_out)
    )


if __name__ == "__main__":
    main("import_model", run)
