"""Stage build_bank: schedules that were tuned for other models, as donors for the next one."""

from __future__ import annotations

from fewtune.artifacts import Fingerprint
from fewtune.bank.build import build_bank
from fewtune.stages.command import main, say
from fewtune.stages.params import load_section
from fewtune.stages.paths import Places
from fewtune.util.files import whole_directory


def run(strategy: str) -> None:
    """Distil the tuning logs of a folder; without one, the bank is empty."""
    options = load_section("build_bank", strategy)
    places = Places()
    fingerprint = Fingerprint.read(places.fingerprint)
    with whole_directory(places.bank(strategy)) as directory:
        report = build_bank(options, fingerprint, directory)
    donations = sum(len(entry.donations) for entry in report.entries)
    say(
        f"bank ({strategy}): {donations} schedules of {len(report.entries)} workloads "
        f"from {len(report.sources)} logs"
        if options.logs is not None
        else f"bank ({strategy}): none"
    )


if __name__ == "__main__":
    main("build_bank", run)
