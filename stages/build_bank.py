"""Stage build_bank: schedules that were tuned for other models, as donors for the next one."""

from __future__ import annotations

from fewtune.bank.bank import build_bank
from fewtune.stages.command import Stage, main
from fewtune.util.files import whole_directory


def run(stage: Stage) -> None:
    """Distil the tuning logs of a folder; without one, the bank is empty."""
    with whole_directory(stage.places.bank(stage.strategy)) as directory:
        report = build_bank(stage.options, stage.fingerprint, directory)
    donations = sum(len(entry.donations) for entry in report.entries)
    workloads, logs = len(report.entries), len(report.sources)
    stage.say(f"bank of {donations} schedules of {workloads} workloads from {logs} logs")


if __name__ == "__main__":
    main("build_bank", run, "strategy")
