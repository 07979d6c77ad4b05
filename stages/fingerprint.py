"""Stage fingerprint: check every parameter, write down the machine and models' own settings."""

from __future__ import annotations

from fewtune.machine.fingerprint import detect_fingerprint
from fewtune.stages.command import main, say
from fewtune.stages.params import BY_MODEL, OF_MODEL, load_all
from fewtune.stages.paths import Places
from fewtune.util.files import canonical_json, whole_directory


def run() -> None:
    """Check all of params.yaml and look at this machine: device, target, threads, versions."""
    params = load_all()
    fingerprint = detect_fingerprint(params["fingerprint"])
    places = Places()
    with whole_directory(places.fingerprint) as directory:
        fingerprint.write(directory)
    with whole_directory(places.all_settings) as directory:
        for model, own in params[BY_MODEL].items():
            for section in OF_MODEL:
                file = directory / model / f"{section}.json"
                file.parent.mkdir(exist_ok=True)
                file.write_text(canonical_json(own.get(section, {})))
    say(
        f"{fingerprint.device}, {fingerprint.threads} threads, machine "
        f"{fingerprint.identity()}: {fingerprint.target}"
    )


if __name__ == "__main__":
    main("fingerprint", run)
