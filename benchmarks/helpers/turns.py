"""Models of the zoo, and the same ones in peers, timed in turns: the command, and its table."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.helpers.common import one_line_errors
from fewtune.machine.affinity import cores_off_the_pool, on_cores
from fewtune.measure import interleave
from fewtune.util.files import canonical_json, write_text

Row = dict[str, Any]


def in_turns(
    runs: Mapping[str, Callable[[], Any]], own: Collection[str], rounds: int
) -> dict[str, list[float]]:
    """Time inferences in turns.

    Threads are placed as `fewtune.benchmark.variants` places them, which says why.

    Parameters
    ----------
    runs : mapping of str to callable
        One inference each.
    own : collection of str
        Those that TVM's runtime runs.
    rounds : int

    Returns
    -------
    samples : dict of str to list of float
        Seconds of one inference, a sample a round.
    """
    for name in own:
        runs[name]()
    roaming, apart = os.sched_getaffinity(0), cores_off_the_pool()
    placed = {
        name: partial(on_cores, apart if name in own else roaming, run)
        for name, run in runs.items()
    }
    try:
        return interleave.interleave(placed, rounds, together=frozenset(own))
    finally:
        os.sched_setaffinity(0, roaming)


def rows_by_model(
    name: str,
    about: str,
    models: Sequence[str],
    measure: Callable[[str, Path, int | None], Row],
    markdown: Callable[[list[Row]], str],
) -> None:
    """A command that measures model after model, and writes JSON and table after each.

    Parameters
    ----------
    name : str
        Of the benchmark, its scratch folder and its results.
    about : str
        Its module's docstring.
    models : sequence of str
        Measured unless others are named; their rows come first.
    measure : callable
        Takes a model's name, the scratch folder and the trials a task; gives the model's row.
    markdown : callable
        The page of some rows.
    """
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument(
        "models", nargs="*", metavar="NAME", help=f"of the zoo; {', '.join(models)} unless given"
    )
    parser.add_argument("--work", type=Path, default=Path(".fewtune") / name, help="scratch folder")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where tables go")
    parser.add_argument("--trials", type=int, help="a task; the default of `tune` unless given")
    asked = parser.parse_args()
    path = asked.results / f"{name}.json"
    rows = {row["model"]: row for row in json.loads(path.read_text())} if path.is_file() else {}
    asked.work.mkdir(parents=True, exist_ok=True)
    with one_line_errors(name):
        for model in asked.models or models:
            rows[model] = measure(model, asked.work, asked.trials)
            print(rows[model], flush=True)
            known = [rows[each] for each in dict.fromkeys([*models, *rows]) if each in rows]
            write_text(path, canonical_json(known))
            write_text(path.with_suffix(".md"), markdown(known))
