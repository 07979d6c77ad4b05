"""The command line of every stage: ``python -m fewtune.stages.<name> --model M --strategy S``."""

from __future__ import annotations

import argparse
import inspect
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

from fewtune.artifacts import Fingerprint
from fewtune.errors import printable
from fewtune.machine.device_lock import device_lock
from fewtune.process.ending import VERBOSE, end_with_starter, exit_code, is_asked_to_end, show_logs
from fewtune.stages.params import PER_STRATEGY, load_section
from fewtune.stages.paths import Places
from fewtune.util.files import whole_directory


class Stage:
    """A stage at work: what it works on, its options, and where its files lie.

    Parameters
    ----------
    name : str
        In ``dvc.yaml``.
    model, strategy : str
        Empty for a stage that has none.
    """

    def __init__(self, name: str, model: str = "", strategy: str = "") -> None:
        self.name, self.model, self.strategy = name, model, strategy
        self.of = (model, strategy)
        self.places = Places()

    @cached_property
    def options(self) -> Any:
        """The stage's own section of ``params.yaml``."""
        strategy = self.strategy if self.name in PER_STRATEGY else None
        # Donors are the same for all models.
        return load_section(self.name, strategy, model=self.model or None)

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """The machine that is measured."""
        return Fingerprint.read(self.places.fingerprint)

    def say(self, message: str) -> None:
        """Print how far the stage is: one line on standard output, flushed."""
        strategy = f"({self.strategy})" if self.strategy else ""
        of = " ".join(filter(None, [self.model, strategy]))
        print(printable(f"{of}: {message}" if of else message), flush=True)

    def measuring(self) -> AbstractContextManager[None]:
        """Hold the device that is measured, waiting while another run measures there."""
        from fewtune.measure.device import device_of  # loads TVM, as not every stage does

        device = device_of(self.fingerprint)
        # A fleet's machines hold their own devices, batch by batch.
        if device.can.locks_itself and self.name in ("tune", "share_schedules"):
            return nullcontext()
        strategy = f" ({self.strategy})" if self.strategy else ""
        return device_lock(device.lock, f"{self.name} {self.model}{strategy}")

    @contextmanager
    def journalled(self, output: Path, *, measures: bool) -> Iterator[tuple[Path, Path]]:
        """Give the folders of journal and outputs; hold the device if it ``measures``."""
        journal = self.places.journal(*self.of, self.name)
        with self.measuring() if measures else nullcontext(), whole_directory(output) as directory:
            yield journal, directory
        # The journal is for a run that was killed, or interrupted: a forced run goes on from it.
        # Any other journal would leave a forced run nothing to measure.
        if not is_asked_to_end():
            shutil.rmtree(journal, ignore_errors=True)


def main(name: str, run: Callable[[Stage], None], *axes: str) -> None:
    """Run a stage and leave the process with its exit code.

    Parameters
    ----------
    name : str
        The stage's name in ``dvc.yaml``, named in messages.
    run : callable
        The stage.
    *axes : str
        What it is run for: ``model``, ``strategy``; each is a required option.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m fewtune.stages.{name}", description=inspect.getdoc(run)
    )
    for axis in axes:
        parser.add_argument(f"--{axis}", required=True)
    stage = Stage(name, **vars(parser.parse_args()))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.environ.get(VERBOSE):
        show_logs()

    def work() -> int:
        end_with_starter()
        run(stage)
        return 0

    code = exit_code(work, f"fewtune: {name}")
    if code:
        sys.exit(code)
