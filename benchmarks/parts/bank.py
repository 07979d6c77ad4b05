"""What a schedule bank saves: ``python benchmarks/parts/bank.py MODEL [MODEL ...]``.

To be run in a checkout where ``fewtune run --all`` was done for these models and for others. For
each model a bank is built of the full runs' logs of all *other* models in ``out/``, or of those
that ``--of`` names, such as the first model of its family; then the model is selected, tuned (what
the bank does not serve) and shared anew, with the stages' own parameters ("bank") and with the
least that can be measured, one candidate a task and no finals ("bank, one trial").
A task that the bank holds itself is known: it is not measured in either. Both libraries are
verified and measured in turns, in one process, with the full and the selective run's and
onnxruntime. Building the bank is not part of the time: it is made once for all models to come.

``results/bank/MODEL.json`` is written for each model, and ``results/bank/README.md`` over all.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.helpers.common import one_line_errors
from fewtune.artifacts import BenchmarkReport, CompileReport, Conditions, Fingerprint, Metrics
from fewtune.bank.bank import Bank
from fewtune.bank.build import build_bank
from fewtune.bank.options import BankOptions
from fewtune.benchmark.benchmark import conditions_of
from fewtune.benchmark.options import BenchmarkOptions
from fewtune.benchmark.variants import Variants
from fewtune.compile.compile import compile_model
from fewtune.compile.options import CompileOptions
from fewtune.errors import InputError
from fewtune.machine.device_lock import device_lock, device_name
from fewtune.measure import interleave
from fewtune.model.import_model import read_lowered
from fewtune.options import ShareOptions
from fewtune.report.conditions import conditions_text
from fewtune.runtime.target import target_from_json
from fewtune.selection.select import select_tasks
from fewtune.sharing.share import share_schedules
from fewtune.storage.log_archive import merge
from fewtune.task.extract import Task, read_tasks
from fewtune.tuning.tune import tune
from fewtune.util.files import canonical_json, write_text
from fewtune.util.table import Table, number, percent
from stages.commit import commit
from stages.params import load_section
from stages.paths import Places

LEAST = {"trials_per_task": 1, "draws": 0, "finals": 0}
VARIANTS: dict[str, dict[str, Any]] = {"bank": {}, "bank, one trial": LEAST}


PRACTICE = "practice_"


def donors(places: Places, model: str, named: list[str] | None = None) -> dict[str, Path]:
    """The full runs' logs of all other models, or of those that are named, by name."""
    found = {
        path.parents[2].name: path.parent
        for path in sorted(places.out.glob("*/full/share/log.json"))
    }
    found.pop(model, None)
    if named is None:
        # Nobody deploys what the predictor is trained on.
        found = {name: log for name, log in found.items() if not name.startswith(PRACTICE)}
    if not found:
        raise InputError(f"no other model than {model} was tuned in full: there is no bank")
    if named is not None:
        if model in named:
            raise InputError(f"--of names {model} itself: a bank is made of other models")
        missing = sorted({*named} - {*found})
        if missing:
            raise InputError(
                f"{', '.join(missing)} was not tuned in full: run `fewtune run --all` with it first"
            )
        found = {name: found[name] for name in named}
    return found


def made_bank(logs: dict[str, Path], fingerprint: Fingerprint, work: Path) -> Path:
    """Build a bank of logs by name; returns its folder."""
    for name, log in logs.items():
        (work / "logs" / name).mkdir(parents=True)
        merge([log], work / "logs" / name)
    (work / "bank").mkdir()
    build_bank(BankOptions(logs=str(work / "logs")), fingerprint, work / "bank")
    return work / "bank"


def tuned_with_bank(
    name: str, model: str, tasks: list[Task], fingerprint: Fingerprint, bank: Path, work: Path
) -> tuple[dict[str, Any], Path]:
    """Select, tune, share and compile one variant; its figures and its library."""
    places, target = Places(), target_from_json(fingerprint.target)
    folders = {stage: work / stage for stage in ("tune", "share", "compile")}
    for folder in folders.values():
        folder.mkdir(parents=True)
    began_s = time.perf_counter()
    selection, _ = select_tasks(
        tasks,
        load_section("select_tasks", "selective"),
        target=target,
        model=model,
        strategy=name,
        bank=Bank.read(bank),
    )
    selecting_s = time.perf_counter() - began_s
    tuned = tune(
        tasks, selection, fingerprint, load_section("tune"), work / "journal", folders["tune"]
    )
    options = {**load_section("share_schedules").model_dump(), **VARIANTS[name]}
    shared = share_schedules(
        tasks,
        selection,
        folders["tune"],
        fingerprint,
        ShareOptions.model_validate(options),
        work / "journal-share",
        folders["share"],
        bank_directory=bank,
        model_directory=places.tasks(model),
    )
    compiled = compile_model(
        read_lowered(places.imported(model)),
        tasks,
        folders["share"],
        places.imported(model),
        fingerprint,
        CompileOptions(),
        folders["compile"],
        model=model,
        strategy=name,
    )
    row = {
        "variant": name,
        "banked": len(selection.banked),
        "known": sum(line.status == "known" for line in shared.tasks),
        "representatives": len(selection.representatives),
        "tuning_s": round(selecting_s + tuned.tuning_s + shared.sharing_s, 3),
        "trials": tuned.trials + shared.trials,
        "max_relative_error": compiled.max_relative_error,
    }
    return row, folders["compile"] / compiled.library


def run(model: str, logs: dict[str, Path], rounds: int, output: Path) -> None:
    """Measure one model with a bank of these logs, and without; write its results."""
    places = Places()
    fingerprint = Fingerprint.read(places.fingerprint)
    tasks = read_tasks(places.tasks(model))
    measuring = BenchmarkOptions(rounds=rounds)
    work = places.scratch / "bank" / model
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    rows: list[dict[str, Any]] = []
    libraries: dict[str, Path] = {}
    with device_lock(device_name(fingerprint), f"bank {model}"):
        bank = made_bank(logs, fingerprint, work)
        for name in VARIANTS:
            folder = work / name.replace(", ", "_").replace(" ", "_")
            row, libraries[name] = tuned_with_bank(name, model, tasks, fingerprint, bank, folder)
            rows.append(row)
        for name in ("selective", "full"):
            folder = places.compiled(model, name)
            libraries[name] = folder / CompileReport.read(folder).library
            metrics = Metrics.read(places.benchmarked(model, name))
            rows.append(
                {
                    "variant": name,
                    "banked": 0,
                    "known": 0,
                    "representatives": metrics.representatives,
                    "tuning_s": metrics.tuning_s,
                    "trials": metrics.trials,
                    "max_relative_error": metrics.max_relative_error,
                }
            )
        variants = Variants(places.imported(model), libraries, fingerprint, measuring)
        del variants.runs["untuned"]
        samples = variants.measured(rounds)
    full_s = rows[-1]["tuning_s"]
    for row in rows:
        name = row["variant"]
        row["used_time_pct"] = 100 * row["tuning_s"] / full_s
        row["latency_ms"] = interleave.latency_stats(samples[name]).median_ms
        row.update(interleave.achieved_pct(samples["full"], samples[name]))
        over = interleave.ratio_stats(samples["onnxruntime"], samples[name])
        row["speedup_over_onnxruntime"] = over.median
    compared = BenchmarkReport.read(places.benchmarked(model, "full")).conditions
    result = {
        "model": model,
        "bank_of": sorted(logs),
        "onnxruntime_latency_ms": interleave.latency_stats(samples["onnxruntime"]).median_ms,
        "rows": rows,
        # Trials a task of the runs without a bank, which what it serves is held to.
        "conditions": conditions_of(
            fingerprint, variants.options, compared.trials_per_task, commit=commit()
        ).model_dump(mode="json"),
    }
    output.mkdir(parents=True, exist_ok=True)
    write_text(output / f"{model}.json", canonical_json(result))
    shutil.rmtree(work)


def markdown(output: Path) -> str:
    """All results in a folder, as one table with its conditions."""
    results = [json.loads(path.read_text()) for path in sorted(output.glob("*.json"))]
    headings = [
        "model", "variant", "from the bank", "known", "tuned", "time s", "used time %",
        "latency ms", "achieved %", "p10 - p90", "x over onnxruntime", "trials",
    ]  # fmt: skip
    rows = [
        [
            result["model"],
            row["variant"],
            str(row["banked"]),
            str(row.get("known", 0)),
            str(row["representatives"]),
            number(row["tuning_s"]),
            percent(row["used_time_pct"]),
            number(row["latency_ms"]),
            percent(row["achieved_perf_pct"]),
            f"{row['achieved_perf_p10_pct']:.1f} - {row['achieved_perf_p90_pct']:.1f}",
            f"{row['speedup_over_onnxruntime']:.2f}",
            str(row["trials"]),
        ]
        for result in results
        for row in result["rows"]
    ]
    sentences = [
        f"{result['model']}: bank of the full logs of {', '.join(result['bank_of'])}; measured on "
        f"{conditions_text(Conditions.model_validate(result['conditions']))}."
        for result in results
    ]
    table = Table(headings, rows, frozenset({0, 1})).markdown()
    return (
        "# With a schedule bank, and without\n\n" + table + "".join(f"\n{t}\n" for t in sentences)
    )


def main() -> None:
    """Measure the models named and say where the results stand."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", help="models that `fewtune run --all` was done with")
    parser.add_argument("--of", nargs="+", metavar="MODEL", help="models that make up the bank")
    parser.add_argument("--rounds", type=int, default=30, help="rounds of all variants in turn")
    parser.add_argument("--output", type=Path, default=Path("results/bank"))
    arguments = parser.parse_args()
    with one_line_errors("bank"):
        logs = {model: donors(Places(), model, arguments.of) for model in arguments.models}
        for model in arguments.models:
            run(model, logs[model], arguments.rounds, arguments.output)
    text = markdown(arguments.output)
    write_text(arguments.output / "README.md", text)
    print(text)


if __name__ == "__main__":
    main()
