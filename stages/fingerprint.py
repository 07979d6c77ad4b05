"""Stage fingerprint: check every parameter, then write down the machine figures hold for."""

from __future__ import annotations

from fewtune.machine.fingerprint import detect_fingerprint
from fewtune.stages.command import main, say
from fewtune.stages.params import load_all
from fewtune.stages.paths import Places
from fewtune.util.files import whole_directory


def run() -> None:
    """Check all of params.yaml and look at this machine: device, target, threads, versions."""
    params = load_all()
    fingerprint = detect_fingerprint(params["fingerprint"])
    with whole_directory(Places().fingerprint) as directory:
        fingerprint.write(directory)
    say(
        f"{fingerprint.device}, {fingerprint.threads} threads, machine "
        f"{fingerprint.identity()}: {fingerprint.target}"
    )


if __name__ == "__main__":
    main("fingerprint", run)
