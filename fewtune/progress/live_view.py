"""The live view of a tuning run on a terminal: a table of the tasks at work, redrawn in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from fewtune.progress.snapshot import Snapshot

_HEADS = ("task", "shapes", "trials", "default ms", "best ms", "gain")
# Lines of the terminal that no task can have: headings, rules, the line below the table.
_OTHER_LINES = 7
_FIGURE_WIDTH = 6


class LiveView:
    """Shows one row for each task, the present one last, and the state of the run below.

    Parameters
    ----------
    stream : TextIO
        A terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream, force_terminal=True)
        self._rows: dict[str, tuple[str, ...]] = {}
        self._live: Live | None = None

    def show(self, snapshot: Snapshot) -> None:
        """Redraw with what is new."""
        # The row is removed first, so that the present task moves to the end.
        self._rows.pop(snapshot.task, None)
        self._rows[snapshot.task] = _row(snapshot)
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
            # A killed run must not leave a terminal without a cursor.
            self._console.show_cursor(True)
        self._live.update(self._drawn(snapshot), refresh=True)

    def say(self, text: str) -> None:
        """Print a line that stays; the table so far stays above it."""
        self.close()
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Leave the table as it stands and begin another with the next snapshot."""
        if self._live is not None:
            self._live.stop()
            self._live = None
            self._rows.clear()

    def _drawn(self, snapshot: Snapshot) -> Group:
        table = Table(box=None, pad_edge=False)
        for head in _HEADS:
            text = head in ("task", "shapes")
            # In a narrow window names and shapes are cut, never figures.
            table.add_column(
                head,
                justify="left" if text else "right",
                no_wrap=True,
                overflow="ellipsis",
                min_width=None if text else max(_FIGURE_WIDTH, len(head)),
            )
        room = max(3, self._console.height - _OTHER_LINES)
        for row in list(self._rows.values())[-room:]:
            table.add_row(*(Text(cell) for cell in row))
        return Group(table, Text(snapshot.standing()))


def _row(snapshot: Snapshot) -> tuple[str, ...]:
    default_ms, best_ms = snapshot.default_ms, snapshot.best_ms
    return (
        snapshot.task,
        snapshot.detail,
        str(snapshot.task_trials),
        f"{default_ms:.4g}" if default_ms is not None else "-",
        f"{best_ms:.4g}" if best_ms is not None else "-",
        f"{snapshot.gain:.2f}x" if snapshot.gain is not None else "-",
    )
