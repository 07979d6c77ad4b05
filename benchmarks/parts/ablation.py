"""What each part of selective tuning is worth: ``python benchmarks/parts/ablation.py MODEL``.

To be run in a checkout where ``fewtune run MODEL --all`` was done. No variant tunes anew: the
representatives' records come from the log of the *full* run, which holds every task's trials, so
that variants differ in selection and sharing alone. ``representative_tuning_s`` is therefore the
sum of the seconds that the full run spent on those tasks; what no task can be charged with, the
start of the workers and the default schedules of all tasks, is part of the full run's seconds
only. Sharing is done and measured anew for every variant, its library verified, and all libraries
are measured in turns in one process: in groups of a few (``--at-once``), for each holds the
model's weights, with the full run's library and onnxruntime in every group. Untuned TVM is left
out: a call takes up to 8 s. A line "selective run" shows the real selective run beside them.

``results/ablation/MODEL.json`` and ``.md`` are written. A killed run, started again, goes on from
its journals.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.helpers.common import one_line_errors
from benchmarks.parts import selections
from benchmarks.parts.ablation_table import write_results
from benchmarks.parts.ablation_variants import STRATEGY, VARIANTS, Full, Ready, make
from fewtune.artifacts import CompileReport, Fingerprint, Metrics, TuneReport
from fewtune.benchmark.benchmark import conditions_of
from fewtune.benchmark.options import BenchmarkOptions
from fewtune.benchmark.variants import Variants
from fewtune.errors import InputError
from fewtune.machine.device_lock import device_lock, device_name
from fewtune.runtime.target import target_from_json
from fewtune.selection.options import SelectOptions
from fewtune.selection.select import select_tasks
from fewtune.task.extract import read_tasks
from stages.commit import commit
from stages.params import load_section
from stages.paths import Places

RUN = "selective run"


def measure(
    libraries: dict[str, Path],
    full: Full,
    fingerprint: Fingerprint,
    options: BenchmarkOptions,
    at_once: int,
) -> list[dict[str, list[float]]]:
    """Seconds by variant, round by round, in groups; full and onnxruntime are in each."""
    folder = full.places.compiled(full.model, "full")
    baseline = folder / CompileReport.read(folder).library
    groups = []
    for names in batches(iter(libraries), at_once):
        group = {"full": baseline, **{name: libraries[name] for name in names}}
        variants = Variants(full.places.imported(full.model), group, fingerprint, options)
        del variants.runs["untuned"]
        groups.append(variants.measured(options.rounds))
        # Before the next ones load theirs.
        del variants
    return groups


def batches(names: Iterator[str], size: int) -> Iterator[list[str]]:
    """So many names at a time, the rest last."""
    while batch := list(islice(names, size)):
        yield batch


def run(arguments: argparse.Namespace) -> None:
    """Select, share, compile, measure, and write the results."""
    full = Full(Places(), arguments.model)
    places, model = full.places, full.model
    fingerprint = Fingerprint.read(places.fingerprint)
    tasks = read_tasks(places.tasks(model))
    asked = [v for v in VARIANTS if not arguments.variants or v.name in arguments.variants]
    for name in {*arguments.variants} - {v.name for v in asked}:
        raise InputError(f"{name} is no variant: {', '.join(v.name for v in VARIANTS)}")
    options: SelectOptions = load_section("select_tasks", "selective")
    options = options.model_copy(update={"method": "cliques", "clusters": None})
    began_s = time.perf_counter()
    base, matrix = select_tasks(
        tasks,
        options,
        target=target_from_json(fingerprint.target),
        model=model,
        strategy=STRATEGY,
    )
    similarity_s = time.perf_counter() - began_s
    by_name = {task.info.name: task for task in tasks}
    found = selections.Candidates(
        [by_name[name] for name in matrix.names], matrix.values, options.min_similarity
    )
    work = places.scratch / STRATEGY / model
    ready: dict[str, Ready] = {}
    with device_lock(device_name(fingerprint), f"ablation {model}"):
        for variant in asked:
            if not variant.possible:
                print(f"{variant.name}: left out, this version has no such option", flush=True)
                continue
            began_s = time.perf_counter()
            clusters = variant.choose(found)
            selecting_s = time.perf_counter() - began_s + similarity_s * variant.by_similarity
            method = getattr(variant.choose, "func", variant.choose).__name__
            selection = selections.as_selection(
                base, found, clusters, variant.name, method, options.min_cluster_share
            )
            print(
                f"{variant.name}: {len(selection.representatives)} representatives, "
                f"{len(selection.dependents)} dependents, {len(selection.alone)} alone",
                flush=True,
            )
            ready[variant.name] = make(
                variant, selection, selecting_s, full, tasks, fingerprint, work
            )
        libraries = {name: each.library for name, each in ready.items()}
        folder = places.compiled(model, "selective")
        libraries[RUN] = folder / CompileReport.read(folder).library
        # Many libraries are in memory at once.
        measuring = BenchmarkOptions(rounds=arguments.rounds, copies=1)
        groups = measure(libraries, full, fingerprint, measuring, arguments.at_once)
    rows = {name: each.row for name, each in ready.items()}
    rows[RUN] = row_of_run(Metrics.read(places.benchmarked(model, "selective")), full)
    trials_per_task = TuneReport.read(full.tune_directory).trials_per_task
    conditions = conditions_of(fingerprint, measuring, trials_per_task, commit=commit())
    write_results(model, rows, groups, full.metrics, conditions, arguments.output)
    # Kept up to here for a run that is killed; left, the next run would measure nothing.
    shutil.rmtree(places.journal(model, STRATEGY, ""), ignore_errors=True)
    shutil.rmtree(work)


def row_of_run(metrics: Metrics, full: Full) -> dict[str, Any]:
    """The line of the real selective run."""
    return {
        "variant": RUN,
        "method": "as params.yaml says",
        "representatives": metrics.representatives,
        "dependents": metrics.dependents,
        "selecting_s": metrics.selecting_s,
        "representative_tuning_s": metrics.representative_tuning_s,
        "sharing_s": metrics.sharing_s,
        "used_time_pct": 100 * metrics.tuning_s / full.metrics.tuning_s,
        "trials": metrics.trials,
        "max_relative_error": metrics.max_relative_error,
    }


def main() -> None:
    """Run the ablation and say where its results stand."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="a model that `fewtune run MODEL --all` was done with")
    parser.add_argument("--variants", nargs="*", default=[], metavar="NAME", help="only these")
    parser.add_argument("--rounds", type=int, default=30, help="rounds of all variants in turn")
    parser.add_argument("--at-once", type=int, default=8, help="libraries measured in one group")
    parser.add_argument("--output", type=Path, default=Path("results/ablation"))
    arguments = parser.parse_args()
    with one_line_errors("ablation"):
        run(arguments)
    print((arguments.output / f"{arguments.model}.md").read_text())


if __name__ == "__main__":
    main()
