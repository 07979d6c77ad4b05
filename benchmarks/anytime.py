"""Latency by seconds of tuning: ``python benchmarks/anytime.py [MODEL ...] --output DIR``.

Models are files, or names of the zoo. Each is tuned in full and selectively by `fewtune.tune`, each
tuning in a process of its own that has no kernel of another tuning. Selective tuning is done again
with 5 % of full tuning's time; it goes on from the same first library. All libraries and
onnxruntime then take turns in one process. A second call goes on where the first was ended.

``DIR/anytime.json`` has ``models``, a list of:

- ``model``, ``seed``, ``conditions``;
- ``first_library_s``: seconds from the import to the first library, which is verified and on disk;
- ``first_pct``, ``at_5_pct``, ``final_pct``: performance in per cent of full tuning's (latency of
  full tuning's library over that of the first one, of that after 5 % of full tuning's time, and of
  the last one). Where the first library took longer than these 5 %, it is also the second;
- ``at_5_s``, ``final_s``, ``full_s``: seconds of predicting, selecting, tuning and sharing. Full
  tuning is not charged for predicting, which it does not use;
- ``x_onnxruntime_first``, ``x_onnxruntime_final``: onnxruntime's latency over these libraries';
- ``budget_pct``, ``budget_s``: with ``--budget-of-full``, sharing went on for full tuning's time;
- ``latency_ms`` of each.

``DIR/anytime.png`` shows the first model's latency by seconds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from matplotlib.axes import Axes

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.helpers.common import alone, one_line_errors, run_limited, why_ended
from benchmarks.helpers.models import model_of
from benchmarks.helpers.pictures import drawn
from fewtune.artifacts import (
    CompileReport,
    Conditions,
    Curve,
    Fingerprint,
    Metrics,
    PredictReport,
)
from fewtune.benchmark.interleave import achieved_pct, latency_stats, ratio_stats
from fewtune.benchmark.variants import Variants
from fewtune.errors import FewtuneError, MachineError
from fewtune.options import BenchmarkOptions, TuneOptions
from fewtune.prediction.predict import FIRST_LIBRARY
from fewtune.stages.commit import commit
from fewtune.stages.paths import Places
from fewtune.util.files import canonical_json, write_bytes, write_text
from fewtune.util.table import Table, number

PROJECT = Path(__file__).resolve().parents[1]
FLOATS = (
    "densenet121 mobilenet_v2 resnet50_v1 squeezenet_v1_1 ssd512_resnet50 vgg19_bn yolov3_mobilenet"
)
_BYTES = "squeezenet_v1_1 mobilenet_v2 resnet50_v1 yolov3_mobilenet vgg19_bn bert_mini"
BYTES = _BYTES.split()
MODELS = [*FLOATS.split(), *(f"{name}-int8" for name in BYTES)]
# The libraries; all but the first have a folder of their own, with the kernels that were built.
FIRST, AT_5, FINAL, FULL, BUDGET = "first", "at_5", "final", "full", "budget"
KERNELS = "kernels"
_IMPORTED = ("fingerprint", "bank", "import", "tasks")
_PREDICTED = (*_IMPORTED, "predict", "select")
# Rounds that end by their budget alone.
_GOES_ON = {"share_schedules": {"least_gain": 1e-9}}
LIMIT_S = 7200.0
_TUNE = "import json, sys, fewtune; fewtune.tune(**json.loads(sys.argv[1]))"


def tune_apart(folder: Path, asked: dict[str, Any], options: dict[str, Any] | None = None) -> None:
    """Tune a model into a folder, in a process that keeps kernels there; what is done is kept."""
    kernels = folder / KERNELS
    kernels.mkdir(parents=True, exist_ok=True)
    # The libraries are measured later, beside each other.
    options = {"benchmark": {"rounds": 3, "copies": 1}, **(options or {})}
    arguments = json.dumps({**asked, "out": str(folder), "options": options})
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "XDG_CACHE_HOME": str(kernels)}
    # The folder has no logs of earlier tunings to begin from.
    command = [sys.executable, "-c", _TUNE, arguments]
    code, lines = run_limited(command, folder, LIMIT_S, environment)
    if code:
        raise MachineError(f"{folder}: {why_ended(code, lines, LIMIT_S)}")


def begin_from(base: Path, folder: Path, steps: Sequence[str]) -> None:
    """Take over the steps of another tuning, with the kernels that it had after the last one."""
    if folder.is_dir():
        return
    beside = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(beside, ignore_errors=True)
    (beside / "keys").mkdir(parents=True)
    for step in steps:
        shutil.copytree(base / step, beside / step)
        shutil.copy2(base / "keys" / step, beside / "keys" / step)
    ended_s = (base / "keys" / steps[-1]).stat().st_mtime

    def later(at: str, names: list[str]) -> list[str]:
        return [n for n in names if n.endswith(".o") and Path(at, n).stat().st_mtime > ended_s]

    shutil.copytree(base / KERNELS, beside / KERNELS, ignore=later)
    beside.rename(folder)


def tune_within(
    budget_s: float, folder: Path, asked: dict[str, Any], options: dict[str, Any] | None = None
) -> None:
    """Tune again from what was predicted, with so much time in all.

    Sharing is given less by its longest round: it may begin one just before its end.
    """
    base = folder.with_name(FINAL)
    metrics = Metrics.read(base / "benchmark")
    ends_s = [point.elapsed_s for point in Curve.read(base / "share").points]
    if ends_s:
        ends_s[0] += metrics.representative_tuning_s
    longest_s = max((end - start for start, end in itertools.pairwise(ends_s)), default=0.0)
    spent_s = PredictReport.read(base / "predict").predicting_s + metrics.selecting_s
    # A budget is above zero.
    left_s = max(budget_s - spent_s - longest_s, 1e-3)
    begin_from(base, folder, _PREDICTED)
    tune_apart(folder, {**asked, "budget_s": left_s}, options)


def tuned(work: Path, asked: dict[str, Any], *, budget_of_full: bool) -> dict[str, Path]:
    """Tune a model in all ways; the folder of each."""
    base, full = work / FINAL, work / FULL
    if not (base / "keys" / "predict").is_file():
        # What was ended before its first library begins anew: that is timed from the import on.
        shutil.rmtree(base, ignore_errors=True)
    tune_apart(base, asked)
    begin_from(base, full, _IMPORTED)
    tune_apart(full, {**asked, "strategy": FULL})
    folders = {FINAL: base, FULL: full}
    at_5_s = 0.05 * full_s(full)
    if at_5_s > first_library_s(base):
        folders[AT_5] = work / AT_5
        tune_within(at_5_s, folders[AT_5], asked)
    if budget_of_full:
        folders[BUDGET] = work / BUDGET
        tune_within(full_s(full), folders[BUDGET], asked, _GOES_ON)
    return folders


def first_library_s(folder: Path) -> float:
    """Seconds from the end of the import to the first library, task extraction included."""
    imported_s, ready_s = ((folder / "keys" / n).stat().st_mtime for n in ("import", "predict"))
    return ready_s - imported_s


def full_s(folder: Path) -> float:
    """Seconds of full tuning: predicting, of which it makes no use, is left out."""
    predicting_s = PredictReport.read(folder / "predict").predicting_s
    return Metrics.read(folder / "benchmark").tuning_s - predicting_s


def library_of(folder: Path) -> Path:
    """The library of a compiling step."""
    return folder / CompileReport.read(folder).library


def in_turns(
    imported: Path, libraries: dict[str, Path], fingerprint: Fingerprint, options: BenchmarkOptions
) -> tuple[dict[str, list[float]], BenchmarkOptions]:
    """Seconds of each variant, in turns, and with what they were measured."""
    variants = Variants(imported, libraries, fingerprint, options, untuned=False)
    return variants.measured(options.rounds), variants.options


def row_of(folders: dict[str, Path], trials: int, rounds: int) -> dict[str, Any]:
    """One model's row: its libraries and onnxruntime in turns."""
    base = folders[FINAL]
    fingerprint = Fingerprint.read(base / "fingerprint")
    libraries = {name: library_of(folder / "compile") for name, folder in folders.items()}
    libraries[FIRST] = library_of(base / "predict" / FIRST_LIBRARY)
    options = BenchmarkOptions(rounds=rounds)
    # In a process of its own: in one that has compiled, onnxruntime took 5 ms more a call.
    with alone("anytime"), multiprocessing.get_context("spawn").Pool(1) as fresh:
        wanted = (base / "import", libraries, fingerprint, options)
        samples, options = fresh.apply(in_turns, wanted)
    samples.setdefault(AT_5, samples[FIRST])
    row: dict[str, Any] = {"full_s": full_s(folders[FULL])}
    row["first_library_s"] = first_library_s(base)
    for name in [each for each in (FIRST, AT_5, FINAL, BUDGET) if each in samples]:
        row[f"{name}_pct"] = achieved_pct(samples[FULL], samples[name])["achieved_perf_pct"]
        if name in folders:
            row[f"{name}_s"] = Metrics.read(folders[name] / "benchmark").tuning_s
    for name in (FIRST, FINAL):
        row[f"x_onnxruntime_{name}"] = ratio_stats(samples["onnxruntime"], samples[name]).median
    row["latency_ms"] = {n: latency_stats(s).median_ms for n, s in samples.items()}
    conditions = Conditions(
        fingerprint=fingerprint, trials_per_task=trials, commit=commit(), **dict(options)
    )
    return {**row, "conditions": conditions.model_dump(mode="json")}


def curve_of(folder: Path, ends_ms: float) -> tuple[list[float], list[float]]:
    """Seconds and latencies of a session: estimates, scaled so that the last is what it took."""
    points = Curve.read(folder).points
    times = ends_ms / points[-1].estimated_latency_ms if points else 0.0
    return [p.elapsed_s for p in points], [times * p.estimated_latency_ms for p in points]


def picture(row: dict[str, Any], folders: dict[str, Path]) -> bytes:
    """PNG of a model's latency by seconds: selective and full tuning, and onnxruntime."""
    took_ms, ready_s = row["latency_ms"], row["first_library_s"]
    shared_s, shared_ms = curve_of(folders[FINAL] / "share", took_ms[FINAL])
    # The clock of the rounds leaves out what extracting tasks took.
    shared_s = [ready_s + each - shared_s[0] for each in shared_s]

    def draw(axes: list[Axes]) -> None:
        axes[0].axhline(took_ms["onnxruntime"], color="gray", linestyle=":", label="onnxruntime")
        axes[0].step(shared_s, shared_ms, where="post", label="selective tuning")
        axes[0].step(
            *curve_of(folders[FULL] / "tune", took_ms[FULL]), where="post", label="full tuning"
        )
        axes[0].plot(ready_s, took_ms[FIRST], "ko", label="first library")
        axes[0].set(xlabel="seconds since the import", ylabel="latency (ms)", title=row["model"])
        axes[0].set(xscale="log", ylim=(0, None))
        axes[0].xaxis.set_major_formatter("{x:g}")
        axes[0].xaxis.set_minor_formatter("{x:g}")

    return drawn(1, draw)


def table(rows: list[dict[str, Any]]) -> Table:
    """A line a tuning, and their geometric means."""
    keys = dict.fromkeys(k for row in rows for k, value in row.items() if isinstance(value, float))
    lines = [[row["model"], *(number(row.get(key)) for key in keys)] for row in rows]
    means = (geometric_mean(row[key] for row in rows if key in row) for key in keys)
    return Table(
        ["model", *keys], [*lines, ["geometric mean", *map(number, means)]], frozenset({0})
    )


def main() -> None:
    """Tune, measure, and write a row a model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help="a file, or a name of the zoo")
    parser.add_argument("--wild", nargs="+", default=[], metavar="NAME", help="of wild.toml")
    parser.add_argument("--output", type=Path, default=PROJECT / "results", metavar="DIR")
    parser.add_argument("--work", type=Path, default=Places().scratch / "anytime", metavar="DIR")
    parser.add_argument("--trials", type=int, default=TuneOptions().trials_per_task)
    parser.add_argument("--seeds", type=int, default=1, help="tunings of each model")
    parser.add_argument("--rounds", type=int, default=30, help="of all libraries in turns")
    meaning = "tune selectively for full tuning's time, too"
    parser.add_argument("--budget-of-full", action="store_true", help=meaning)
    given = parser.parse_args()
    with one_line_errors("anytime"):
        sys.exit(_main(given, [*given.models, *given.wild] or MODELS))


def _main(given: argparse.Namespace, names: list[str]) -> int:
    """The exit code of the last model that failed, after all rows."""
    code, path, failed = commit(), given.output / "anytime.json", 0
    written = json.loads(path.read_text())["models"] if path.is_file() else []
    rows = {(row["model"], row["seed"]): row for row in written}
    for name, seed in itertools.product(names, range(given.seeds)):
        key = Path(name).name.removesuffix(".onnx"), seed
        if key in rows and rows[key]["conditions"]["commit"] == code:
            print(f"{key[0]}: measured already at this commit", flush=True)
            continue
        # What an earlier commit tuned is not taken for this one's.
        work = (given.work / str(code) / key[0] / str(seed)).resolve()
        try:
            file, inputs = model_of(name, given.work / "models")
            asked = {**inputs, "model": str(file), "trials": given.trials, "seed": seed}
            folders = tuned(work, asked, budget_of_full=given.budget_of_full)
            row = row_of(folders, given.trials, given.rounds)
        except FewtuneError as error:
            failed = error.exit_code
            print(f"{key[0]}: {error}", file=sys.stderr, flush=True)
            continue
        rows[key] = {"model": key[0], "seed": seed, **row}
        write_text(path, canonical_json({"models": list(rows.values())}))
        if (name, seed) == (names[0], 0):
            write_bytes(path.with_suffix(".png"), picture(rows[key], folders))
        print(table([rows[key]]).text(), flush=True)
    return failed


if __name__ == "__main__":
    main()
