"""Tables that read the same as markdown, on a terminal and in a pipe."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TextIO, TypeVar

from fewtune.errors import printable

if TYPE_CHECKING:
    from rich.table import Table as RichTable

Item = TypeVar("Item")
MISSING = "-"
_ANY_WIDTH = 10_000


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

    @classmethod
    def of(
        cls,
        items: Iterable[Item],
        columns: Mapping[str, Callable[[Item], str]],
        left: frozenset[int] = frozenset({0}),
    ) -> Table:
        """A row for each item; a column has a heading, and gives the text of a cell."""
        rows = [[text(item) for text in columns.values()] for item in items]
        return cls([*columns], rows, left)

    def first(self, columns: int) -> Table:
        """The table's first columns; its widest ones come last."""
        return replace(
            self, headings=self.headings[:columns], rows=[row[:columns] for row in self.rows]
        )

    def markdown(self) -> str:
        """The table as GitHub markdown, ending in a newline."""
        rules = [":---" if column in self.left else "---:" for column in range(len(self.headings))]
        lines = [self.headings, rules, *self.rows]
        return "".join(
            "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines
        )

    def text(self) -> str:
        """The table in columns of plain text, ending in a newline; headings are wrapped."""
        from rich.console import Console

        console = Console(file=io.StringIO(), width=_ANY_WIDTH, markup=False, highlight=False)
        with console.capture() as shown:
            console.print(self._ruled())
        # A rule of ASCII's letters goes through every pipe.
        lines = shown.get().replace("\N{BOX DRAWINGS LIGHT HORIZONTAL}", "-").splitlines()
        return "".join(f"{line.rstrip()}\n" for line in lines if line.strip())

    def print(self, stream: TextIO | None = None) -> None:
        """Show the table."""
        stream = stream or sys.stdout
        stream.write(self.text())
        stream.flush()

    def _ruled(self) -> RichTable:
        """The table for rich: a heading takes no more width than its longest word or the cells."""
        from rich import box
        from rich.table import Table as RichTable

        # Names of tensors and models are others' text.
        rows = [[printable(cell) for cell in row] for row in self.rows]
        ruled = RichTable(
            box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0)
        )
        for column, heading in enumerate(self.headings):
            words = [*heading.split(), *(row[column] for row in rows)]
            width = max(map(len, words), default=0)
            is_left = column in self.left
            ruled.add_column(
                heading,
                justify="left" if is_left else "right",
                max_width=width,
                min_width=None if is_left else width,
                vertical="bottom",
            )
        for row in rows:
            ruled.add_row(*row)
        return ruled


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
