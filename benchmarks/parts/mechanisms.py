"""What each mechanism is worth: each off alone, all others on, models in turns.

    python benchmarks/parts/mechanisms.py [MODEL ...] [--trials 32] [--seeds 1] [--minutes 10]

Mechanism after mechanism, every model is tuned selectively without it. Steps before the first that
differs are taken from the run with everything on, so that both have the same tasks, or the same
tuning log. Then all libraries of a model are measured in turns in one process, those with
everything on in every group of them. Nothing else may compute meanwhile.

What was tuned stays in a folder (``--work``): the same command goes on there, also after a kill.
No tuning begins after the minutes; mechanisms without one are missing from the table. Writes
``results/mechanisms.json`` and ``.md``, and prints the table.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.helpers.common import alone
from benchmarks.parts.without import ALL_ON, BY_NAME, OFF, STEPS, Off
from fewtune.artifacts import (
    CompileReport,
    Fingerprint,
    SelectionTiming,
    ShareReport,
    TuneReport,
)
from fewtune.benchmark.benchmark import conditions_of
from fewtune.benchmark.options import BenchmarkOptions
from fewtune.benchmark.variants import Variants
from fewtune.errors import InputError
from fewtune.measure.interleave import latency_stats, ratio_stats
from fewtune.report.conditions import conditions_lines
from fewtune.util.files import canonical_json, write_text
from fewtune.util.table import Table, number
from stages.commit import commit

MODELS = ("zoo:squeezenet_v1_1", "zoo:mobilenet_v2")
_DONE = "done.json"


def folder_of(work: Path, model: str, seed: int, off: Off) -> Path:
    """Where a model is tuned without a mechanism."""
    name = "".join(each if each.isalnum() else "_" for each in off.name)
    return work / model.replace(":", "_").replace("/", "_") / str(seed) / name


def tune(work: Path, model: str, trials: int, seed: int, off: Off) -> None:
    """Tune a model without a mechanism, and note what that took."""
    folder, base = folder_of(work, model, seed, off), folder_of(work, model, seed, BY_NAME[ALL_ON])
    if not folder.is_dir() and folder != base:
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(base / "models", partial / "models")
        for step in STEPS[: STEPS.index(off.first)]:
            shutil.copytree(base / step, partial / step)
            (partial / "keys").mkdir(exist_ok=True)
            shutil.copy(base / "keys" / step, partial / "keys" / step)
        partial.rename(folder)
    without = Path(__file__).with_name("without.py")
    done = subprocess.run(
        [sys.executable, without, off.name, folder, model, str(trials), str(seed)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no word of it"])[-1]
        raise InputError(f"{model} without {off.name}: {last}")
    spent_s = (
        SelectionTiming.read(folder / "select").selecting_s
        + TuneReport.read(folder / "tune").tuning_s
        + ShareReport.read(folder / "share").sharing_s
    )
    write_text(folder / _DONE, json.dumps({"trials": trials, "tuning_s": round(spent_s, 3)}))


def is_done(folder: Path, trials: int) -> bool:
    """Whether a folder holds a library of so many trials."""
    file = folder / _DONE
    return file.is_file() and json.loads(file.read_text())["trials"] == trials


def measure(
    work: Path, model: str, seed: int, offs: Sequence[Off], rounds: int, at_once: int
) -> Iterator[dict[str, Any]]:
    """Measure what was tuned of a model, in groups with everything on in each; a row each."""
    base = folder_of(work, model, seed, BY_NAME[ALL_ON])
    fingerprint = Fingerprint.read(base / "fingerprint")
    options = BenchmarkOptions(rounds=rounds, copies=1)
    others = [off for off in offs if off.name != ALL_ON]
    for start in range(0, len(others), at_once):
        group = [BY_NAME[ALL_ON], *others[start : start + at_once]]
        libraries = {}
        for off in group:
            compiled = folder_of(work, model, seed, off) / "compile"
            libraries[off.name] = compiled / CompileReport.read(compiled).library
        variants = Variants(base / "import", libraries, fingerprint, options, with_untuned=False)
        taken_s = variants.measured(options.rounds)
        del variants
        for off in group[1:]:
            slower = ratio_stats(taken_s[off.name], taken_s[ALL_ON])
            spent_s, all_s = (
                json.loads((folder_of(work, model, seed, each) / _DONE).read_text())["tuning_s"]
                for each in (off, group[0])
            )
            yield {
                "off": off.name,
                "model": model,
                "seed": seed,
                "latency_ms": latency_stats(taken_s[off.name]).median_ms,
                "all_on_latency_ms": latency_stats(taken_s[ALL_ON]).median_ms,
                "latency_ratio": slower.median,
                "latency_ratio_p10": slower.p10,
                "latency_ratio_p90": slower.p90,
                "tuning_s": spent_s,
                "all_on_tuning_s": all_s,
                "time_ratio": spent_s / all_s,
            }


def mean(ratios: Sequence[float]) -> float:
    """Geometric mean."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """One line a mechanism: what latency and tuning time are without it, over those with it."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    headings = ["off", "latency x", "tuning time x"]
    headings += [f"{model.split(':')[-1]}: latency x [p10 - p90], ms, s" for model in models]
    lines = []
    for name in dict.fromkeys(row["off"] for row in rows):
        own = [row for row in rows if row["off"] == name]
        line = [name, f"{mean([row['latency_ratio'] for row in own]):.3f}"]
        line.append(f"{mean([row['time_ratio'] for row in own]):.3f}")
        for model in models:
            cells = [
                f"{row['latency_ratio']:.3f} [{row['latency_ratio_p10']:.3f} - "
                f"{row['latency_ratio_p90']:.3f}], {number(row['latency_ms'])}, "
                f"{number(row['tuning_s'])}"
                for row in own
                if row["model"] == model
            ]
            line.append("; ".join(cells) or "-")
        lines.append(line)
    return Table(headings, lines)


def main() -> None:
    """Tune, measure, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL")
    parser.add_argument("--trials", type=int, default=32, help="trials a tuned task")
    parser.add_argument("--seeds", type=int, default=1, help="tunings of each")
    parser.add_argument("--rounds", type=int, default=24, help="rounds of all libraries in turns")
    parser.add_argument("--at-once", type=int, default=8, help="libraries measured in one group")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no tuning begins after")
    parser.add_argument("--only", nargs="*", choices=sorted(BY_NAME), metavar="NAME")
    parser.add_argument("--work", type=Path, default=Path(".fewtune/mechanisms"))
    parser.add_argument("--output", type=Path, default=Path("results/mechanisms.json"))
    given = parser.parse_args()
    offs = [off for off in OFF if off.name in (given.only or BY_NAME) or off.name == ALL_ON]
    end_s = time.monotonic() + 60 * given.minutes
    rows: list[dict[str, Any]] = []
    for seed in range(given.seeds):
        for off in offs:
            for model in given.models:
                folder = folder_of(given.work, model, seed, off)
                if is_done(folder, given.trials) or time.monotonic() > end_s:
                    continue
                began_s = time.monotonic()
                tune(given.work, model, given.trials, seed, off)
                took_s = time.monotonic() - began_s
                print(f"{model} without {off.name}: {took_s:.0f} s", flush=True)
    with alone("mechanisms"):
        for seed in range(given.seeds):
            for model in given.models:
                there = [
                    off
                    for off in offs
                    if is_done(folder_of(given.work, model, seed, off), given.trials)
                ]
                if len(there) > 1:
                    rows += measure(given.work, model, seed, there, given.rounds, given.at_once)
    if not rows:
        raise SystemExit("mechanisms: nothing was tuned in time: give more --minutes")
    base = folder_of(given.work, given.models[0], 0, BY_NAME[ALL_ON])
    conditions = conditions_of(
        Fingerprint.read(base / "fingerprint"),
        BenchmarkOptions(rounds=given.rounds, copies=1),
        given.trials,
        commit=commit(),
    )
    order = list(BY_NAME)
    rows.sort(key=lambda row: (order.index(row["off"]), row["model"], row["seed"]))
    found = {"conditions": conditions.model_dump(mode="json"), "rows": rows}
    write_text(given.output, canonical_json(found))
    notes = "\n".join(conditions_lines([("", conditions)]))
    text = (
        f"# What each mechanism is worth\n\n{table(rows).markdown()}\n"
        "Each mechanism off alone. Above 1, latency or tuning time is larger without it.\n\n"
        f"{notes}\n"
    )
    write_text(given.output.with_suffix(".md"), text)
    print(text)


if __name__ == "__main__":
    main()
