"""What `fewtune report`, `compare` and `watch` do."""

from __future__ import annotations

import argparse
from pathlib import Path

from fewtune.errors import InputError
from fewtune.pipelines.checkout.project import find_root
from fewtune.pipelines.commands.show import (
    remark,
    results_json,
    show_json,
    show_results,
    shown,
    tell,
)
from fewtune.report import tables
from fewtune.stages.paths import Places
from fewtune.util.files import write_text


def report(options: argparse.Namespace) -> int:
    """Show what is on disk."""
    from fewtune.pipelines.checkout.results import read_results

    root = find_root()
    found = read_results(root, remark, options.models or None)
    missing = set(options.models) - {result.model for result in found}
    if missing or not found:
        what = f"of {', '.join(sorted(missing))} " if missing else ""
        again = " ".join(["fewtune run", *sorted(missing)])
        raise InputError(f"no result {what}is on disk: make it with `{again}`")
    if options.html:
        _write_pages(root, list(dict.fromkeys(each.model for each in found)), options.output)
    elif options.json:
        show_json(results_json(found, root))
    elif options.markdown:
        print(tables.results_markdown(found, options.wide), end="")
        for result in found if options.kernels else ():
            print(f"\n{tables.benchmark_markdown(result.benchmark)}", end="")
    else:
        show_results(found, root, options.wide)
        for result in found if options.kernels else ():
            print(f"\n{result.model}, {result.strategy}:")
            tables.kernel_table(result.benchmark).print()
    return 0


def _write_pages(root: Path, models: list[str], output: str | None) -> None:
    """Write a page for each model, and print their paths."""
    from fewtune.pipelines.records.page import model_page

    if output is not None and len(models) > 1:
        raise InputError(f"--output {output} is one file, and there are {len(models)} models")
    for model in models:
        path = Path(output) if output else Places(root).scratch / "report" / f"{model}.html"
        if path.is_dir():
            raise InputError(f"--output {path} is a folder: give a file")
        write_text(path, model_page(root, model))
        tell(shown(path))


def compare(options: argparse.Namespace) -> int:
    """Put recorded results side by side."""
    root = find_root()
    from fewtune.pipelines.records.compare import runs_named, runs_table, said_of

    runs = runs_named(root, options.results)
    if options.json:
        told = [
            {
                "run": run.info.run_name,
                "id": run.info.run_id,
                "figures": run.data.metrics,
                "parameters": run.data.params,
                "tags": {k: v for k, v in run.data.tags.items() if "." not in k},
            }
            for run in runs
        ]
        show_json({"runs": told, "remarks": said_of(runs)})
        return 0
    runs_table(runs).print()
    for line in said_of(runs):
        tell(line)
    return 0


def watch(options: argparse.Namespace) -> int:
    """Compare the latest recorded results with those before them."""
    root = find_root()
    from fewtune.pipelines.records.fleet import write_page
    from fewtune.pipelines.records.watch import raise_if_slower, watch_table
    from fewtune.pipelines.records.watch import watch as watch_recorded

    watched = watch_recorded(root, options.models or None, options.fleet)
    if options.json:
        show_json([{**each.to_dict(), "slower": each.line() or None} for each in watched])
    else:
        table = watch_table(watched)
        # The machine follows the columns that fit 80 letters.
        (table if options.wide else table.first(tables.NARROW + options.fleet)).print()
    folder = Places(root).scratch / "fleet" if options.page is None else Path(options.page)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--page {folder} is no folder: give one that both files go to")
    for path in write_page(watched, folder):
        (remark if options.json or options.quiet else tell)(f"  {shown(path)}")
    raise_if_slower(watched)
    return 0
