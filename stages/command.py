"""The command line that every stage shares: ``python -m stages.<name> --model M --strategy S``."""

from __future__ import annotations

import argparse
import inspect
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from fewtune.artifacts import Fingerprint
from fewtune.errors import (
    INTERRUPTED,
    MACHINES_FAULT,
    TERMINATED,
    FewtuneError,
    MachineError,
    disk_line,
)
from fewtune.machine.device_lock import device_lock, device_name
from fewtune.process.temporary import own_temporary_folder
from stages.parent_watch import end_with_starter

# Stages that a fleet's machines do.
_ON_FLEET = ("tune", "share_schedules")
_HELP = {
    "model": "a model registered under models/",
    "strategy": "a strategy of params.yaml, such as selective or full",
}


def say(message: str) -> None:
    """Print how far a stage is: one line on standard output, flushed."""
    print(message, flush=True)


def measuring(
    fingerprint: Fingerprint, stage: str, model: str, strategy: str | None = None
) -> AbstractContextManager[None]:
    """Hold the device that ``stage`` measures on, waiting while another run measures there."""
    if fingerprint.is_fleet and stage in _ON_FLEET:
        # Its machines hold their own devices, batch by batch.
        return nullcontext()
    purpose = f"{stage} {model}" + (f" ({strategy})" if strategy else "")
    return device_lock(device_name(fingerprint), purpose)


def _terminate(*_: object) -> None:
    sys.exit(TERMINATED)


def main(stage: str, run: Callable[..., None], arguments: list[str] | None = None) -> None:
    """Run a stage and leave the process with its exit code.

    Parameters
    ----------
    stage : str
        The stage's name in ``dvc.yaml``, named in messages.
    run : callable
        The stage. Each of its parameters becomes a required option of the same name.
    arguments : list of str, optional
        Instead of the process's own arguments.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m stages.{stage}", description=inspect.getdoc(run)
    )
    for name in inspect.signature(run).parameters:
        parser.add_argument(f"--{name}", required=True, help=_HELP.get(name))
    options = vars(parser.parse_args(arguments))
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # So that a stage that is stopped tidies up as one that is interrupted.
        signal.signal(signal.SIGTERM, _terminate)
        end_with_starter()
        with own_temporary_folder():
            run(**options)
    except FewtuneError as error:
        line = " ".join(str(error).split())
        print(f"fewtune: {stage}: {line}", file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno not in MACHINES_FAULT:
            raise
        line = disk_line(error)
        print(f"fewtune: {stage}: {line}", file=sys.stderr, flush=True)
        sys.exit(MachineError.exit_code)
    except KeyboardInterrupt:
        print(f"fewtune: {stage}: interrupted", file=sys.stderr, flush=True)
        sys.exit(INTERRUPTED)
