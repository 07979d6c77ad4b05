"""The command line of every stage: ``python -m fewtune.stages.<name> --model M --strategy S``."""

from __future__ import annotations

import argparse
import inspect
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from fewtune.artifacts import Fingerprint
from fewtune.errors import printable
from fewtune.machine.device_lock import device_lock
from fewtune.stages.ending import exit_code
from fewtune.stages.parent_watch import end_with_starter
from fewtune.stages.paths import Places
from fewtune.util.files import whole_directory

# If it is set, stages print what the library logs.
VERBOSE = "FEWTUNE_VERBOSE"
# Stages that a fleet's machines do.
_ON_FLEET = ("tune", "share_schedules")


def say(message: str) -> None:
    """Print how far a stage is: one line on standard output, flushed."""
    print(printable(message), flush=True)


def measuring(
    fingerprint: Fingerprint, stage: str, model: str, strategy: str | None = None
) -> AbstractContextManager[None]:
    """Hold the device that ``stage`` measures on, waiting while another run measures there."""
    from fewtune.measure.device import device_of  # loads TVM, as not every stage does

    device = device_of(fingerprint)
    if device.can.locks_itself and stage in _ON_FLEET:
        # Its machines hold their own devices, batch by batch.
        return nullcontext()
    purpose = f"{stage} {model}" + (f" ({strategy})" if strategy else "")
    return device_lock(device.lock, purpose)


@contextmanager
def journalled(
    fingerprint: Fingerprint, stage: str, model: str, strategy: str, output: Path
) -> Iterator[tuple[Path, Path]]:
    """As `measuring`; gives the folders of journal and outputs."""
    journal = Places().journal(model, strategy, stage)
    with measuring(fingerprint, stage, model, strategy), whole_directory(output) as directory:
        yield journal, directory
    # The journal is for a run that was killed; left here, a forced run would measure nothing.
    shutil.rmtree(journal, ignore_errors=True)


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
        prog=f"python -m fewtune.stages.{stage}", description=inspect.getdoc(run)
    )
    for name in inspect.signature(run).parameters:
        parser.add_argument(f"--{name}", required=True)
    options = vars(parser.parse_args(arguments))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.environ.get(VERBOSE):
        logging.basicConfig(format="%(name)s: %(message)s")
        logging.getLogger("fewtune").setLevel(logging.DEBUG)

    def work() -> int:
        end_with_starter()
        run(**options)
        return 0

    code = exit_code(work, f"fewtune: {stage}")
    if code:
        sys.exit(code)
