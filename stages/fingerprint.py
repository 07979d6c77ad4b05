"""Stage fingerprint: check every parameter, write down the machine and models' own settings."""

from __future__ import annotations

from fewtune.machine.fingerprint import detect_fingerprint
from fewtune.model_check.report import too_few
from fewtune.stages.command import Stage, main
from fewtune.stages.params import BY_MODEL, OF_MODEL, load_all
from fewtune.util.files import canonical_json, whole_directory


def run(stage: Stage) -> None:
    """Check all of params.yaml and look at this machine: device, target, threads, versions."""
    params = load_all()
    fingerprint = detect_fingerprint(params["fingerprint"])
    with whole_directory(stage.places.fingerprint) as directory:
        fingerprint.write(directory)
    with whole_directory(stage.places.all_settings) as directory:
        for model, own in params[BY_MODEL].items():
            for section in OF_MODEL:
                file = directory / model / f"{section}.json"
                file.parent.mkdir(exist_ok=True)
                file.write_text(canonical_json(own.get(section, {})))
            trials = own.get("tune", {}).get("trials_per_task", params["tune"].trials_per_task)
            if line := too_few(model, trials):
                stage.say(f"{line}, and its time is the limit")
    stage.say(
        f"{fingerprint.device}, {fingerprint.threads} threads, machine "
        f"{fingerprint.identity()}: {fingerprint.target}"
    )


if __name__ == "__main__":
    main("fingerprint", run)
