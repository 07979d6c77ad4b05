"""Results on disk as text: tables, their conditions, the paths of files.

Every command uses it, so modules that only tables need are loaded when a table is shown.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewtune.errors import one_line, printable
from fewtune.process.child_python import SHOW_STDERR
from fewtune.process.ending import VERBOSE, show_logs
from fewtune.stages.paths import Places

_QUIET = "FEWTUNE_QUIET"

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
    for line in [*tables.disturbed_lines(found), *tables.results_conditions(found)]:
        tell(line)
    print("\nFiles:")
    for each in results_json(found, root):
        tell(f"  {shown(each['report'])}")
        tell(f"  {shown(each['library'])}")
    for comparison in comparisons:
        tell(f"  {shown(Places(root).compared(comparison.model) / 'report.md')}")
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
    """The results, with the paths of their files."""
    places, told = Places(root), []
    for each in found:
        library = places.compiled(each.model, each.strategy) / "model.so"
        report = places.benchmarked(each.model, each.strategy) / "report.md"
        told.append({**each.to_dict(), "library": str(library), "report": str(report)})
    return told


def shown(path: Path | str) -> str:
    """A path as the user would type it from here."""
    return os.path.relpath(path)


def tell(line: str) -> None:
    """Print a line of a result."""
    print(printable(line), flush=True)


def say(line: str) -> None:
    """Print something that is no result: on standard error."""
    print(one_line(line), file=sys.stderr, flush=True)


def remark(line: str) -> None:
    """Say something that is no error either."""
    if _QUIET not in os.environ:
        say(line)


@contextlib.contextmanager
def told(options: argparse.Namespace) -> Iterator[None]:
    """Say more or less while a command runs, as its --verbose or --quiet asks."""
    before = dict(os.environ)
    if getattr(options, "quiet", False):
        os.environ[_QUIET] = "1"
    if getattr(options, "verbose", False):
        os.environ |= {VERBOSE: "1", SHOW_STDERR: "1"}
        show_logs()
    try:
        yield
    finally:
        for name in (_QUIET, VERBOSE, SHOW_STDERR):
            os.environ.pop(name, None)
        os.environ |= before
