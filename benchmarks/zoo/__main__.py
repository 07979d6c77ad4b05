"""The zoo as a table, or its models as files: ``python -m benchmarks.zoo [NAME ...]``."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.helpers.common import one_line_errors
from benchmarks.zoo.quantize import SUFFIX
from benchmarks.zoo.registry import ZOO, verify, written, zoo_names
from fewtune.util.table import Table, number

_HEADINGS = ("name", "input", "parameters M", "multiply-adds G", "published G", "source")


def zoo_table() -> Table:
    """Every model with the counts of its graph, the published multiply-adds, and their source."""
    rows = []
    for name, entry in ZOO.items():
        found = verify(name)
        shape = "x".join(map(str, next(iter(found.inputs.values()))))
        rows.append(
            (
                name,
                f"{len(found.inputs)} of {shape}" if len(found.inputs) > 1 else shape,
                f"{found.parameters / 1e6:.3f}",
                number(found.multiply_adds / 1e9),
                number(entry.expected_multiply_adds / 1e9),
                entry.source,
            )
        )
    return Table(_HEADINGS, rows, left=frozenset({0, 1, len(_HEADINGS) - 1}))


def main() -> None:
    """Print the table, or write models."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="NAME", help="NAME-int8: in eight bits")
    parser.add_argument("--all", action="store_true", help="every model of the table")
    parser.add_argument("--seed", type=int, default=0, help="of the weights")
    parser.add_argument("--output", type=Path, default=Path("build/zoo"), metavar="DIR")
    given = parser.parse_args()
    names = zoo_names() if given.all else given.models
    with one_line_errors("zoo"):
        for name in names:
            verify(name.removesuffix(SUFFIX))
            print(written(name, given.output, given.seed), flush=True)
        if not names:
            zoo_table().print()


if __name__ == "__main__":
    main()
