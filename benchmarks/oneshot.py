"""One-shot tuning beside measured tuning: ``python benchmarks/oneshot.py [MODEL ...]``.

To be run in a checkout where ``fewtune run MODEL --all`` was done (or, with ``--against
selective``, ``fewtune run MODEL``); all such models unless some are named. Each model's schedules
are predicted anew, compiled and verified; then the library, that of the measured run and
onnxruntime are measured in turns, in one process. Selecting, predicting and writing the log is the
time reported, reading the tasks and the predictor included, and the process that predicts, which is
forked of a warm one, as in ``fewtune run``.

``results/oneshot.json`` is a list: ``model``, ``seconds``, ``achieved_pct`` (latency of the
measured run over that of the predicted one), ``x_onnxruntime``, and what they were measured with.
Beside it in the same turns stands a library by the predictor of the nearest CPU alone
(``nearest_achieved_pct``): what asking the others as well is worth.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.helpers.common import alone
from fewtune.artifacts import CompileReport, Fingerprint, Metrics
from fewtune.benchmark.benchmark import conditions_of
from fewtune.benchmark.options import BenchmarkOptions
from fewtune.benchmark.variants import Variants
from fewtune.compile.compile import TunedParts, compile_model
from fewtune.compile.options import CompileOptions
from fewtune.errors import InputError
from fewtune.measure import interleave
from fewtune.model.import_model import read_lowered
from fewtune.options import PREDICT, ShareOptions
from fewtune.prediction.predict_apart import PredictJob, predict_apart
from fewtune.predictor import AUTO
from fewtune.predictor.predictor import nearest_shipped
from fewtune.process.child_python import TVM
from fewtune.process.warm import warm_process
from fewtune.runtime.target import target_from_json
from fewtune.selection.options import SelectOptions
from fewtune.selection.select import select_tasks
from fewtune.stages.commit import commit
from fewtune.stages.paths import Places
from fewtune.task.extract import read_tasks
from fewtune.util.files import canonical_json, write_text
from fewtune.util.table import Table, number

NAME, NEAREST = "oneshot", "nearest predictor alone"
_COPIES = 3


def models_tuned(places: Places, against: str) -> list[str]:
    """The models that have a measured run to compare with."""
    reports = places.out.glob(f"*/{against}/compile/{CompileReport.file_name}")
    found = sorted(path.parents[2].name for path in reports)
    if not found:
        raise InputError(
            f"no model was tuned by strategy {against} here: run `fewtune run MODEL --strategy "
            f"{against}` first"
        )
    return found


def predicted(
    model: str, places: Places, work: Path, predictor: str = AUTO
) -> tuple[dict[str, Any], Path]:
    """Predict a model's schedules and compile them: what it came to, and the library."""
    fingerprint = Fingerprint.read(places.fingerprint)
    chosen, shared, compiled = work / "select", work / "share", work / "compile"
    for folder in (chosen, shared, compiled):
        folder.mkdir(parents=True)
    began_s = time.perf_counter()
    tasks = read_tasks(places.tasks(model))
    selection, _ = select_tasks(
        tasks,
        SelectOptions(method=PREDICT),
        target=target_from_json(fingerprint.target),
        model=model,
        strategy=NAME,
    )
    options = ShareOptions(predictor=predictor)
    selection.write(chosen)
    job = PredictJob(
        task_directory=places.tasks(model),
        select_directory=chosen,
        fingerprint=places.fingerprint,
        options=options,
        directory=shared,
    )
    report = predict_apart(job)
    seconds = time.perf_counter() - began_s
    library = compile_model(
        TunedParts(
            model,
            NAME,
            read_lowered(places.imported(model)),
            tasks,
            places.imported(model),
            shared,
        ),
        fingerprint,
        CompileOptions(),
        compiled,
    )
    assert report.prediction is not None
    row = {
        "model": model,
        "seconds": round(seconds, 3),
        "compile_s": library.compile_s,
        "points": report.prediction.points,
        "predictor": report.prediction.predictor,
        "warning": report.prediction.warning,
        "tasks": len(tasks),
        "predicted": sum(line.status == "predicted" for line in report.tasks),
        "replaced": len(library.replaced),
    }
    return row, compiled / library.library


def in_turns(
    imported: Path, libraries: dict[str, Path], fingerprint: Fingerprint, options: BenchmarkOptions
) -> tuple[dict[str, list[float]], BenchmarkOptions]:
    """Seconds of each variant, in turns, and with what they were measured."""
    variants = Variants(imported, libraries, fingerprint, options, untuned=False)
    return variants.measured(options.rounds), variants.options


def compared(model: str, against: str, rounds: int, places: Places, work: Path) -> dict[str, Any]:
    """One model's row: predicted beside measured tuning and onnxruntime, in turns."""
    fingerprint = Fingerprint.read(places.fingerprint)
    row, library = predicted(model, places, work)
    folder = places.compiled(model, against)
    libraries = {NAME: library, against: folder / CompileReport.read(folder).library}
    nearest = nearest_shipped(target_from_json(fingerprint.target))
    if nearest is not None:
        _, libraries[NEAREST] = predicted(model, places, work / "nearest", str(nearest))
    options = BenchmarkOptions(rounds=rounds, copies=_COPIES)
    # In a process of its own: in one that has compiled, onnxruntime took 5 ms more a call.
    with multiprocessing.get_context("spawn").Pool(1) as fresh:
        asked = (places.imported(model), libraries, fingerprint, options)
        samples, options = fresh.apply(in_turns, asked)
    achieved = interleave.achieved_pct(samples[against], samples[NAME])
    over = interleave.ratio_stats(samples["onnxruntime"], samples[NAME])
    if nearest is not None:
        alone_pct = interleave.achieved_pct(samples[against], samples[NEAREST])
        row["nearest_achieved_pct"] = alone_pct["achieved_perf_pct"]
    row |= {
        "against": against,
        "achieved_pct": achieved["achieved_perf_pct"],
        "achieved_p10_pct": achieved["achieved_perf_p10_pct"],
        "achieved_p90_pct": achieved["achieved_perf_p90_pct"],
        "x_onnxruntime": over.median,
        "latency_ms": interleave.latency_stats(samples[NAME]).median_ms,
        "against_latency_ms": interleave.latency_stats(samples[against]).median_ms,
        "onnxruntime_latency_ms": interleave.latency_stats(samples["onnxruntime"]).median_ms,
        "against_tuning_s": Metrics.read(places.benchmarked(model, against)).tuning_s,
        "conditions": conditions_of(fingerprint, options, 0, commit=commit()).model_dump(
            mode="json"
        ),
    }
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """The rows and their geometric means, as markdown."""
    headings = [
        "model",
        "one-shot s",
        "against s",
        "latency ms",
        "achieved %",
        "nearest predictor alone %",
        "x over onnxruntime",
    ]
    lines = [
        [
            row["model"],
            number(row["seconds"]),
            number(row["against_tuning_s"]),
            number(row["latency_ms"]),
            number(row["achieved_pct"]),
            number(row.get("nearest_achieved_pct")),
            f"{row['x_onnxruntime']:.2f}",
        ]
        for row in rows
    ]
    means = [
        math.exp(statistics.fmean(math.log(row[key]) for row in rows))
        for key in ("achieved_pct", "x_onnxruntime")
    ]
    lines.append(["geometric mean", "-", "-", "-", number(means[0]), "-", f"{means[1]:.2f}"])
    return Table(headings, lines, frozenset({0})).markdown()


def main() -> None:
    """Measure, write the results, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", help="all that were tuned unless given")
    parser.add_argument("--against", choices=("full", "selective"), default="full")
    parser.add_argument("--rounds", type=int, default=30, help="rounds of all variants in turn")
    parser.add_argument("--output", type=Path, default=Path("results/oneshot.json"))
    arguments = parser.parse_args()
    places = Places()
    work = places.scratch / NAME
    rows = []
    with alone(NAME), warm_process([TVM, "fewtune.prediction.predict_apart"]):
        for model in arguments.models or models_tuned(places, arguments.against):
            shutil.rmtree(work, ignore_errors=True)
            rows.append(compared(model, arguments.against, arguments.rounds, places, work))
            shown = {key: rows[-1][key] for key in ("model", "seconds", "achieved_pct")}
            print(json.dumps(shown), flush=True)
            write_text(arguments.output, canonical_json(rows))
        shutil.rmtree(work, ignore_errors=True)
    print(table(rows))


if __name__ == "__main__":
    main()
