"""What a deployed library takes beside onnxruntime: bytes on disk, time to start, memory.

    python -m benchmarks.deploy [MODEL ...] [--root CHECKOUT] [--strategy selective] [--rounds 7]

Models are those given, or all below out/ that have a library. Each of several processes goes from a
loaded NumPy to the first output, the two runtimes in turns; medians go to results/deploy.json and
results/deploy.md. Nothing else may run meanwhile.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from pathlib import Path
from typing import Any

from benchmarks.helpers.common import alone
from fewtune.artifacts import Fingerprint
from fewtune.benchmark.start import start_figures
from fewtune.errors import FewtuneError
from fewtune.report.tables import target_name
from fewtune.stages.commit import commit
from fewtune.stages.paths import Places
from fewtune.util.files import canonical_json, write_text
from fewtune.util.table import Table

_RESULTS = Path(__file__).parent.parent / "results"
_HEADINGS = [
    *("model", "library MB", "ONNX MB", "growth", "start s", "onnxruntime start s"),
    *("resident MB", "onnxruntime resident MB"),
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
        except (FewtuneError, OSError, RuntimeError) as fault:
            print(f"{model} is left out: {fault}", file=sys.stderr)
            continue
        rows.append({"model": model, **figures._asdict()})
        print(*_row(rows[-1]), flush=True)
    if not rows:
        print("no model has a library: make one with `fewtune run`", file=sys.stderr)
        return 2
    write_text(options.output / "deploy.json", canonical_json(rows))
    write_text(options.output / "deploy.md", _page(rows, places, options.rounds))
    return 0


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
    ]


def _page(rows: list[dict[str, Any]], places: Places, rounds: int) -> str:
    late = sum(row["start_s"] > row["onnxruntime_start_s"] for row in rows)
    large = sum(row["resident_mb"] > 1.2 * row["onnxruntime_resident_mb"] for row in rows)
    machine = Fingerprint.read(places.fingerprint)
    today = datetime.datetime.now(datetime.UTC).date()
    return (
        "# Deployed libraries beside onnxruntime\n\n"
        "Start: seconds from a loaded NumPy to a new process's first output. Resident: its memory "
        "then.\n\n"
        f"{Table(_HEADINGS, [_row(row) for row in rows]).markdown()}\n"
        f"Of {len(rows)} models, {late} start later than onnxruntime, and {large} hold more than "
        "1.2 times its memory.\n\n"
        f"Conditions: {machine.device}, target {target_name(machine.target)}, {machine.threads} "
        f"threads; medians of {rounds} processes each, in turns; {today}; fewtune "
        f"{commit() or 'of no commit'}, onnxruntime {machine.versions.get('onnxruntime')}.\n"
    )


if __name__ == "__main__":
    sys.exit(main())
