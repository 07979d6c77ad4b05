"""What is on disk, as a person reads it: tables, their conditions, where the files are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fewtune import report as tables
from stages.places import Places


def show_results(root: Path, models: Sequence[str] | None) -> None:
    """The results table, its conditions and its files."""
    from pipelines.results import read_results

    found = read_results(root, models)
    if not found:
        return
    print()
    tables.results_table(found).print()
    print()
    comparisons = tables.distinct_comparisons(found)
    if len(comparisons) > 1:
        tables.comparison_table(comparisons).print()
        print()
    for line in [*tables.results_conditions(found), *tables.machine_lines(comparisons)]:
        print(line)
    places = Places(root)
    print("\nFiles:")
    for result in found:
        of = (result.model, result.strategy)
        print(f"  {shown(places.benchmarked(*of) / 'report.md')}")
        print(f"  {shown(places.compiled(*of) / 'model.so')}")
        if result.comparison:
            print(f"  {shown(places.compared(result.model) / 'report.md')}")
    print("Recorded results in MLflow:  fewtune ui", flush=True)


def shown(path: Path) -> str:
    """A path as the user would type it from here."""
    try:
        return os.path.relpath(path)
    except ValueError:
        return str(path)
