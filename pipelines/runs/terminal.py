"""A run on a terminal: a bar for each stage, which shows how far it is and what it said last."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

from fewtune.errors import printable
from fewtune.pipelines.runs.run_plan import Steps
from fewtune.pipelines.runs.stage_process import Ending
from fewtune.process.ending import VERBOSE

# What DVC says as it begins a stage.
_DVCS = ("> ", "Running stage ")
# As `fewtune.progress.progress.Snapshot` says it.
_TRIALS = re.compile(r"(\d+)/(\d+) trials")


class Bars(Steps):
    """A bar a step. The logs of stages have every line."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream)
        self._progress: Progress | None = None

    def do(self, name: str, needs: Sequence[str], work: Callable[[], Ending]) -> Ending:
        """Carry out a step under its bar."""
        last = Column(no_wrap=True, overflow="ellipsis", ratio=1)
        with Progress(
            TextColumn(printable(name), markup=False),
            BarColumn(bar_width=12),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False, table_column=last),
            console=self._console,
            # Drawing takes time of a core that may be measured on.
            refresh_per_second=1,
            redirect_stderr=sys.stderr.isatty(),
            expand=True,
        ) as self._progress:
            self._progress.add_task("", total=None, name=name)
            ending = work()
            self._show(ending.skipped and f"skipped: {ending.skipped}", completed=1, total=1)
        self._progress = None
        return ending

    def say(self, line: str) -> None:
        """Show a line beside the bar."""
        if self._progress is None:
            super().say(line)
            return
        stands = _TRIALS.search(line)
        done = {"completed": int(stands[1]), "total": int(stands[2])} if stands else {}
        text = line.removeprefix(f"{self._progress.tasks[0].fields['name']}: ")
        self._show("" if text.startswith(_DVCS) else text, **done)

    def _show(self, line: str, **done: Any) -> None:
        if self._progress is not None:
            task = self._progress.tasks[0]
            self._progress.update(task.id, description=printable(line) or task.description, **done)


def steps_for(stream: TextIO) -> Steps:
    """Steps with bars on a terminal; lines elsewhere, and where all lines are asked for."""
    return Bars(stream) if stream.isatty() and VERBOSE not in os.environ else Steps()
