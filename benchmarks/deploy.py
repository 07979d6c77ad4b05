"""What a deployed library takes: bytes, time to start, memory, and the latency that a user gets.

    python -m benchmarks.deploy [MODEL ...] [--root CHECKOUT] [--strategy selective] [--rounds 7]

Models are those given, or all below out/ that have a library. Each of several processes goes from a
loaded NumPy to the first output, fewtune and onnxruntime in turns. Others call the library for a
second as docs/deploying.md has it, in turns with others that measure as a run's report does.
Medians go to results/deploy.json and results/deploy.md. Nothing else may run
meanwhile.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.helpers.common import alone
from fewtune.artifacts import Fingerprint
from fewtune.benchmark.benchmark import start_figures
from fewtune.errors import FewtuneError
from fewtune.report.tables import target_name
from fewtune.stages.commit import commit
from fewtune.stages.paths import Places
from fewtune.util.files import canonical_json, write_text
from fewtune.util.table import Table
from fewtune.verify.reference import Reference

_RESULTS = Path(__file__).parent.parent / "results"
# As a user's program calls a library: nothing is bound to a core.
_LOADED = """
import statistics, sys, time
import numpy, fewtune
feeds = dict(numpy.load(sys.argv[2]))
run = fewtune.load(sys.argv[1])
taken_s, end_s = [], time.perf_counter() + 1.5
while (began_s := time.perf_counter()) < end_s:
    run(**feeds)
    taken_s.append(time.perf_counter() - began_s)
print(1e3 * statistics.median(taken_s[len(taken_s) // 3 :]))
"""
# As the report of a run has it: in turns with onnxruntime, after each other's calls.
_REPORTED = """
import statistics, sys
from pathlib import Path
from fewtune.artifacts import Fingerprint
from fewtune.benchmark.variants import Variants
from fewtune.options import BenchmarkOptions
library, imported, fingerprint = map(Path, sys.argv[1:])
machine, options = Fingerprint.read(fingerprint), BenchmarkOptions()
variants = Variants(imported, {"tuned": library}, machine, options, untuned=False)
print(1e3 * statistics.median(variants.measured(9)["tuned"]))
"""
_HEADINGS = [
    *("model", "library MB", "ONNX MB", "growth", "start s", "onnxruntime start s"),
    *("resident MB", "onnxruntime resident MB"),
    *("report ms", "load ms"),
]


def main() -> int:
    """Measure, print the table, write both files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--root", type=Path, default=Path())
    parser.add_argument("--strategy", default="selective")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path, default=_RESULTS)
    options = parser.parse_args()
    places = Places(options.root)
    rows: list[dict[str, Any]] = []
    for model in options.models or _models(places, options.strategy):
        library = places.compiled(model, options.strategy) / "model.so"
        onnx = places.imported(model) / "model.onnx"
        try:
            with alone(f"deploy {model}"):
                figures = start_figures(library, onnx, options.rounds)
                latencies = _latencies(library, places, model, options.rounds)
        except (FewtuneError, OSError, RuntimeError) as fault:
            print(f"{model} is left out: {fault}", file=sys.stderr)
            continue
        rows.append({"model": model, **figures, **latencies})
        print(*_row(rows[-1]), flush=True)
    if not rows:
        print("no model has a library: make one with `fewtune run`", file=sys.stderr)
        return 2
    write_text(options.output / "deploy.json", canonical_json(rows))
    write_text(options.output / "deploy.md", _page(rows, places, options.rounds))
    return 0


def _latencies(library: Path, places: Places, model: str, rounds: int) -> dict[str, float]:
    """Milliseconds of a call, as the report has it and as a user's program gets it, in turns."""
    imported = places.imported(model)
    taken: dict[str, list[float]] = {"report_ms": [], "load_ms": []}
    with tempfile.TemporaryDirectory(prefix="fewtune-") as scratch:
        feeds = Path(scratch) / "feeds.npz"
        np.savez(feeds, **Reference.read(imported).feeds)
        scripts = {
            "report_ms": [_REPORTED, library, imported, places.fingerprint],
            "load_ms": [_LOADED, library, feeds],
        }
        for _ in range(rounds):
            for way, script in scripts.items():
                child = [sys.executable, "-c", *map(str, script)]
                done = subprocess.run(child, check=True, capture_output=True, text=True)
                taken[way].append(float(done.stdout))
    return {way: statistics.median(found) for way, found in taken.items()}


def _models(places: Places, strategy: str) -> list[str]:
    """The models that have a library of a strategy."""
    folders = sorted(path.name for path in places.out.glob("*") if path.is_dir())
    return [each for each in folders if (places.compiled(each, strategy) / "model.so").is_file()]


def _row(row: dict[str, Any]) -> list[str]:
    growth = row["library_mb"] / row["onnx_mb"]
    return [
        row["model"],
        *(f"{row[name]:.1f}" for name in ("library_mb", "onnx_mb")),
        f"{growth:.2f}",
        *(f"{row[name]:.3f}" for name in ("start_s", "onnxruntime_start_s")),
        *(f"{row[name]:.0f}" for name in ("resident_mb", "onnxruntime_resident_mb")),
        *(f"{row[name]:.4g}" for name in ("report_ms", "load_ms")),
    ]


def _page(rows: list[dict[str, Any]], places: Places, rounds: int) -> str:
    late = sum(row["start_s"] > row["onnxruntime_start_s"] for row in rows)
    large = sum(row["resident_mb"] > 1.2 * row["onnxruntime_resident_mb"] for row in rows)
    apart = sum(abs(row["load_ms"] / row["report_ms"] - 1) > 0.03 for row in rows)
    machine = Fingerprint.read(places.fingerprint)
    today = datetime.datetime.now(datetime.UTC).date()
    return (
        "# Deployed libraries beside onnxruntime\n\n"
        "Start: seconds from a loaded NumPy to a new process's first output. Resident: its memory "
        "then. Report: a call's latency, measured as for a run's report. Load: that of a user's "
        "program.\n\n"
        f"{Table(_HEADINGS, [_row(row) for row in rows]).markdown()}\n"
        f"Of {len(rows)} models, {late} start later than onnxruntime, and {large} hold more than "
        f"1.2 times its memory. {apart} have a report that a user's program misses by over 3 %.\n\n"
        f"Conditions: {machine.device}, target {target_name(machine.target)}, {machine.threads} "
        f"threads; medians of {rounds} processes each, in turns; {today}; fewtune "
        f"{commit() or 'of no commit'}, onnxruntime {machine.versions.get('onnxruntime')}.\n"
    )


if __name__ == "__main__":
    sys.exit(main())
