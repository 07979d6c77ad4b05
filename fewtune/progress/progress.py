"""What the user sees while tuning runs: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from fewtune.progress.snapshot import Snapshot
from fewtune.util.files import canonical_json, write_text

if TYPE_CHECKING:
    from fewtune.progress.live_view import LiveView


class Progress:
    """Shows snapshots, and keeps the last one in a file for other programs.

    Parameters
    ----------
    path : Path, optional
        File that holds the latest snapshot as JSON.
    stream : TextIO
        Where to show; a terminal gets a table that is redrawn, any other stream plain lines.
    """

    def __init__(self, path: Path | None = None, stream: TextIO | None = None) -> None:
        self.path = path
        self.stream = stream or sys.stdout
        self._live: LiveView | None = None
        if self.stream.isatty():
            from fewtune.progress.live_view import LiveView

            self._live = LiveView(self.stream)

    def show(self, snapshot: Snapshot) -> None:
        """Show where the run stands now."""
        if self.path is not None:
            write_text(self.path, canonical_json(snapshot.model_dump()))
        if self._live is not None:
            self._live.show(snapshot)
        else:
            self.stream.write(snapshot.line() + "\n")
            self.stream.flush()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        if self._live is not None:
            self._live.say(text)
        else:
            self.stream.write(text + "\n")
            self.stream.flush()

    def close(self) -> None:
        """Leave the last view as it stands."""
        if self._live is not None:
            self._live.close()
