"""Tables that read the same as markdown, on a terminal and in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TextIO

from fewtune.errors import printable

MISSING = "-"


@dataclass(frozen=True)
class Table:
    """Rows of texts under headings; the first column is aligned left, the others right.

    Parameters
    ----------
    headings : sequence of str
    rows : sequence of sequence of str
    left : frozenset of int
        Columns aligned left.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: frozenset[int] = field(default=frozenset({0}))

    def markdown(self) -> str:
        """The table as GitHub markdown, ending in a newline."""
        rules = [":---" if column in self.left else "---:" for column in range(len(self.headings))]
        lines = [self.headings, rules, *self.rows]
        return "".join(
            "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines
        )

    def text(self) -> str:
        """The table in columns of plain text, ending in a newline."""
        # Names of tensors and models are others' text.
        lines = [[printable(cell) for cell in line] for line in (self.headings, *self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.headings))]
        ruled = [lines[0], ["-" * width for width in widths], *lines[1:]]
        return "".join("  ".join(self._aligned(line, widths)).rstrip() + "\n" for line in ruled)

    def print(self, stream: TextIO | None = None) -> None:
        """Show the table: ruled where it is a terminal wide enough, plain columns elsewhere."""
        stream = stream or sys.stdout
        width = len(self.text().splitlines()[1]) + 3 * len(self.headings) + 1
        if stream.isatty():
            from rich import box
            from rich.console import Console
            from rich.table import Table as RichTable

            console = Console(file=stream, highlight=False)
            if console.width >= width:
                ruled = RichTable(box=box.SIMPLE_HEAD, header_style="bold")
                for column, heading in enumerate(self.headings):
                    ruled.add_column(heading, justify="left" if column in self.left else "right")
                for row in self.rows:
                    ruled.add_row(*map(printable, row))
                console.print(ruled)
                return
        stream.write(self.text())
        stream.flush()

    def _aligned(self, line: Sequence[str], widths: Sequence[int]) -> list[str]:
        return [
            cell.ljust(width) if column in self.left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]


def number(value: float | None, digits: int = 3) -> str:
    """Format ``value`` with at least ``digits`` significant digits and no exponent.

    ``None`` gives a dash, so that a figure that was not measured is not mistaken for zero.
    """
    if value is None:
        return MISSING
    if value == 0:
        return "0"
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    decimals = max(0, digits - whole)
    if 0 < abs(value) < 0.1:
        return f"{value:.{digits}g}"
    return f"{value:.{decimals}f}"


def percent(value: float | None) -> str:
    """Format a percentage to one decimal, without the sign."""
    return MISSING if value is None else f"{value:.1f}"
