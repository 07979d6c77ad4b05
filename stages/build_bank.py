"""Stage build_bank: schedules that were tuned for other models, as donors for the next one."""

from __future__ import annotations

from fewtune.bank.build import build_bank
from fewtune.stages.command import Stage, main
from fewtune.util.files import whole_directory


def run(stage: Stage) -> None:
    """Distil the tuning logs of a folder; without one, the bank is empty."""
    with whole_directory(stage.places.bank(stage.strategy)) as directory:
        report = build_bank(stage.options, stage.fingerprint, directory)
    donations = sum(len(entry.donations) for entry in report.entries)
    stage.say(
        f"bank of {donations} schedules of {len(report.entries)} workloads "
        f"from {len(report.sources)} logs"
        if stage.options.logs is not None
        else "no bank"
    )


if __name__ == "__main__":
    main("build_bank", run, "strategy")
