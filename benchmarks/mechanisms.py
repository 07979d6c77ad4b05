"""What each mechanism is worth: each off alone, all others on, models in turns.

    python benchmarks/mechanisms.py [MODEL ...] [--trials 32] [--seeds 2] [--minutes 10]

Mechanism after mechanism, every model is tuned without it, selectively or by one-shot. Steps before
the first that differs are taken from the run with everything on. Then all libraries of a model are
measured in turns in one process. A second tuning with everything on is the row of noise. Nothing
else may compute meanwhile.

A mechanism is off by an option of ``params.yaml``, or by the environment variable
`fewtune.util.switches.VARIABLE`. What was tuned stays in a folder (``--work``): the same command
goes on there. Writes ``results/mechanisms.json``, and prints the table.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.anytime import KERNELS, LIMIT_S, begin_from
from benchmarks.helpers.common import alone, run_limited, why_ended
from benchmarks.helpers.models import model_of
from fewtune.api import ONESHOT, sections
from fewtune.artifacts import (
    CompileReport,
    Conditions,
    Fingerprint,
    PredictReport,
    SelectionTiming,
    ShareReport,
    TuneReport,
)
from fewtune.benchmark.interleave import latency_stats, ratio_stats
from fewtune.benchmark.variants import Variants
from fewtune.errors import InputError
from fewtune.machine.fingerprint import FingerprintOptions, detect_fingerprint
from fewtune.model.source import add_model
from fewtune.options import BenchmarkOptions
from fewtune.stages.commit import commit
from fewtune.steps.steps import NAME, Run
from fewtune.steps.steps import STEPS as _STEPS
from fewtune.util.files import canonical_json, write_text
from fewtune.util.switches import VARIABLE
from fewtune.util.table import Table, number

MODELS = (
    "squeezenet_v1_1",
    "mobilenet_v2",
    "resnet50_v1",
    "bert_mini",
    "captcha_lstm",
    "squeezenet_v1_1-int8",
)
# The folders that steps write, in their order.
STEPS = tuple(step.folder for step in _STEPS)
ON = "all on"


class Off(NamedTuple):
    """A mechanism off: the first step that differs, what the variable names, and options."""

    name: str
    first: str
    switches: tuple[str, ...] = ()
    options: dict[str, dict[str, Any]] = {}


OFF = (
    Off(ON, "fingerprint"),
    # How far two equal runs lie apart.
    Off("nothing (noise)", "tune"),
    Off("Winograd's transforms", "import", ("winograd",)),
    Off("layout-free weights", "import", ("free_weight_layout",)),
    Off("padding", "import", ("pad_filters", "pad_matmul", "pad_softmax")),
    Off("vector functions", "import", ("vector_functions",)),
    Off("recurrent layers", "import", ("recurrent_layers",)),
    Off("integer kernels", "import", ("integer_kernels",)),
    Off("in-place concatenation", "compile", options={"compile": {"in_place": "never"}}),
    Off("register tiles by rule", "tune", options={"tune": {"informed_start": False}}),
    Off(
        "predictor",
        "predict",
        options={n: {"predictor": "never"} for n in ("predict", "tune", "share_schedules")},
    ),
    Off("its correction", "tune", ("correction",)),
    Off("prefetching", "predict", ("prefetching",)),
    Off("turns in the model", "share", options={"share_schedules": {"finals": 0}}),
)
BY_NAME = {off.name: off for off in OFF}


def folder_of(work: Path, model: str, seed: int, off: Off) -> Path:
    """Where a model is tuned without a mechanism."""
    return work / model / str(seed) / "".join(c if c.isalnum() else "_" for c in off.name)


def tune(work: Path, model: str, trials: int, seed: int, off: Off, strategy: str) -> None:
    """Tune a model without a mechanism, in a process of its own, and note what that took."""
    folder, first = folder_of(work, model, seed, off), off.first
    if seed and STEPS.index(first) < STEPS.index("select"):
        # No step before the selection depends on the seed.
        begin_from(folder_of(work, model, 0, off), folder, STEPS[: STEPS.index("select")])
    elif steps := STEPS[: STEPS.index(first)]:
        begin_from(folder_of(work, model, seed, BY_NAME[ON]), folder, steps)
    file, inputs = model_of(model, work / "files")
    add_model(str(file), folder / "models", NAME, replace=True, **inputs)
    # Kernels that another tuning built are not linked: that would shorten this one.
    kernels = folder / KERNELS
    kernels.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, VARIABLE: ",".join(off.switches), "XDG_CACHE_HOME": str(kernels)}
    command = [sys.executable, __file__, "--one", str(folder), json.dumps(off.options)]
    command += ["--trials", str(trials), "--seeds", str(seed), "--strategy", strategy]
    code, lines = run_limited(command, folder, LIMIT_S, environment)
    if code:
        raise InputError(f"{model} without {off.name}: {why_ended(code, lines, LIMIT_S)}")
    spent_s = (
        PredictReport.read(folder / "predict").predicting_s
        + SelectionTiming.read(folder / "select").selecting_s
        + TuneReport.read(folder / "tune").tuning_s
        + ShareReport.read(folder / "share").sharing_s
    )
    write_text(folder / "done.json", json.dumps({"trials": trials, "tuning_s": spent_s}))


def tune_here(folder: Path, options: str, trials: int, seed: int, strategy: str) -> None:
    """Tune the model of a folder, up to its library."""
    # Steps that were taken over are of the fingerprint with everything on.
    known = folder / "fingerprint"
    if known.is_dir():
        fingerprint = Fingerprint.read(known)
    else:
        fingerprint = detect_fingerprint(FingerprintOptions())
    chosen = sections(json.loads(options), strategy, trials, None, seed)
    Run(folder, fingerprint, chosen, strategy, last="compile").go()


def done_of(folder: Path, trials: int) -> dict[str, Any] | None:
    """What a tuning of so many trials took; None if it was not done."""
    file = folder / "done.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    return found if found.get("trials") == trials else None


def measure(
    work: Path, model: str, seed: int, offs: Sequence[Off], trials: int, rounds: int
) -> Iterator[dict[str, Any]]:
    """Measure what was tuned of a model, eight libraries and that with everything on at a time."""
    base = folder_of(work, model, seed, BY_NAME[ON])
    options = BenchmarkOptions(rounds=rounds, copies=1)
    others = [off for off in offs if off.name != ON]
    for start in range(0, len(others), 8):
        group = [BY_NAME[ON], *others[start : start + 8]]
        libraries, spent_s = {}, {}
        for off in group:
            folder = folder_of(work, model, seed, off)
            libraries[off.name] = (
                folder / "compile" / CompileReport.read(folder / "compile").library
            )
            spent_s[off.name] = (done_of(folder, trials) or {})["tuning_s"]
        fingerprint = Fingerprint.read(base / "fingerprint")
        variants = Variants(base / "import", libraries, fingerprint, options, untuned=False)
        taken_s = variants.measured(options.rounds)
        del variants
        for off in group[1:]:
            slower = ratio_stats(taken_s[off.name], taken_s[ON])
            yield {
                "off": off.name,
                "model": model,
                "seed": seed,
                "latency_ms": latency_stats(taken_s[off.name]).median_ms,
                "latency_ratio": slower.median,
                "latency_ratio_p10": slower.p10,
                "latency_ratio_p90": slower.p90,
                "tuning_s": spent_s[off.name],
                "time_ratio": spent_s[off.name] / spent_s[ON],
            }


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """One line a mechanism: what latency and tuning time are without it, over those with it."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    lines = []
    for name in dict.fromkeys(row["off"] for row in rows):
        own = [row for row in rows if row["off"] == name]
        line = [
            name,
            *(f"{geometric_mean(r[k] for r in own):.3f}" for k in ("latency_ratio", "time_ratio")),
        ]
        for model in models:
            cells = [
                f"{row['latency_ratio']:.3f} [{row['latency_ratio_p10']:.3f} - "
                f"{row['latency_ratio_p90']:.3f}], {number(row['tuning_s'])} s"
                for row in own
                if row["model"] == model
            ]
            line.append("; ".join(cells) or "-")
        lines.append(line)
    return Table(["off", "latency x", "tuning time x", *models], lines)


def main() -> None:
    """Tune, measure, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL")
    parser.add_argument("--trials", type=int, default=32, help="trials a tuned task")
    parser.add_argument("--seeds", type=int, default=2, help="tunings of each")
    parser.add_argument("--rounds", type=int, default=24, help="rounds of all libraries in turns")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no tuning begins after")
    parser.add_argument("--only", nargs="*", choices=sorted(BY_NAME), metavar="NAME")
    parser.add_argument("--strategy", choices=("selective", "full", ONESHOT), default="selective")
    parser.add_argument("--work", type=Path, default=Path(".fewtune/mechanisms"))
    parser.add_argument("--output", type=Path, default=Path("results/mechanisms.json"))
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        tune_here(Path(given.one[0]), given.one[1], given.trials, given.seeds, given.strategy)
        return
    offs = [off for off in OFF if off.name in (given.only or BY_NAME) or off.name == ON]
    end_s = time.monotonic() + 60 * given.minutes
    rows: list[dict[str, Any]] = []
    for seed in range(given.seeds):
        for off in offs:
            for model in given.models:
                folder = folder_of(given.work, model, seed, off)
                if done_of(folder, given.trials) or time.monotonic() > end_s:
                    continue
                tune(given.work, model, given.trials, seed, off, given.strategy)
                print(f"{model} without {off.name}: done", flush=True)
    with alone("mechanisms"):
        for seed in range(given.seeds):
            for model in given.models:
                folders = {off.name: folder_of(given.work, model, seed, off) for off in offs}
                there = [off for off in offs if done_of(folders[off.name], given.trials)]
                if len(there) > 1:
                    rows += measure(given.work, model, seed, there, given.trials, given.rounds)
    if not rows:
        raise SystemExit("mechanisms: nothing was tuned in time: give more --minutes")
    base = folder_of(given.work, given.models[0], 0, BY_NAME[ON])
    conditions = Conditions(
        fingerprint=Fingerprint.read(base / "fingerprint"),
        trials_per_task=given.trials,
        commit=commit(),
        **dict(BenchmarkOptions(rounds=given.rounds, copies=1)),
    )
    rows.sort(key=lambda row: ([*BY_NAME].index(row["off"]), row["model"], row["seed"]))
    found = {"conditions": conditions.model_dump(mode="json"), "rows": rows}
    write_text(given.output, canonical_json(found))
    print(table(rows).markdown())


if __name__ == "__main__":
    main()
