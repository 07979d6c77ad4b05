"""Tables that read the same as markdown, on a terminal and in a pipe."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TextIO, TypeVar

from fewtune.errors import printable

Item = TypeVar("Item")
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
        """The table in columns of plain text, ending in a newline.

        A heading is wrapped: it takes no more width than its longest word or the cells.
        """
        # Names of tensors and models are others' text.
        rows = [[printable(cell) for cell in row] for row in self.rows]
        columns = zip(self.headings, *rows, strict=True)
        widths = [
            max(len(text) for text in [*heading.split(), *cells]) for heading, *cells in columns
        ]
        heads = [
            textwrap.wrap(text, width) for text, width in zip(self.headings, widths, strict=True)
        ]
        height = max(map(len, heads))
        headed = zip(*([""] * (height - len(lines)) + lines for lines in heads), strict=True)
        texts = []
        for line in [*headed, ["-" * width for width in widths], *rows]:
            cells = [
                cell.ljust(width) if column in self.left else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            ]
            texts.append(" ".join(cells).rstrip() + "\n")
        return "".join(texts)

    def print(self, stream: TextIO | None = None) -> None:
        """Show the table."""
        stream = stream or sys.stdout
        stream.write(self.text())
        stream.flush()


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
