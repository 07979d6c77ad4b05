"""Results on disk as text: tables, their conditions, the paths of files.

Every command uses it, so modules that only tables need are loaded when a table is shown.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewtune.errors import one_line, printable
from fewtune.stages.paths import Places

if TYPE_CHECKING:
    from fewtune.report import tables


def show_results(found: Sequence[tables.Result], root: Path, wide: bool = False) -> None:
    """The results table, its conditions and its files."""
    if not found:
        return
    from fewtune.report import tables

    print()
    tables.results_table(found, wide).print()
    print()
    comparisons = tables.distinct_comparisons(found)
    if len(comparisons) > 1:
        tables.comparison_table(comparisons, wide).print()
        print()
    lines = [*tables.disturbed_lines(found), *tables.results_conditions(found)]
    for line in [*lines, *tables.stolen_lines(comparisons)]:
        tell(line)
    places = Places(root)
    print("\nFiles:")
    for result in found:
        of = (result.model, result.strategy)
        tell(f"  {shown(places.benchmarked(*of) / 'report.md')}")
        tell(f"  {shown(places.compiled(*of) / 'model.so')}")
        if result.comparison:
            tell(f"  {shown(places.compared(result.model) / 'report.md')}")
    _say_where_recorded(found, root)


def _say_where_recorded(found: Sequence[tables.Result], root: Path) -> None:
    """Print which results MLflow has: it may have been out of reach when they were made."""
    from fewtune.pipelines.dvc_repo.dag import Result
    from fewtune.pipelines.records.recorded import is_recorded

    results = [Result(each.model, each.strategy) for each in found]
    waiting = [str(result) for result in results if not is_recorded(root, result)]
    if len(waiting) < len(results):
        tell("Recorded results in MLflow:  fewtune ui")
    if waiting:
        tell(f"To record in MLflow ({', '.join(waiting)}):  fewtune record")


def show_json(content: object) -> None:
    """Print a result for programs: JSON on standard output."""
    print(json.dumps(content, indent=2), flush=True)


def results_json(found: Sequence[tables.Result], root: Path) -> list[dict[str, Any]]:
    """The results, with the paths of their libraries."""
    places = Places(root)
    return [
        {**each.to_dict(), "library": str(places.compiled(each.model, each.strategy) / "model.so")}
        for each in found
    ]


def shown(path: Path) -> str:
    """A path as the user would type it from here."""
    return os.path.relpath(path)


def tell(line: str) -> None:
    """Print a line of a result."""
    print(printable(line), flush=True)


def say(line: str) -> None:
    """Print something that is no result: on standard error."""
    print(one_line(line), file=sys.stderr, flush=True)
