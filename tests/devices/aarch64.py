"""An emulated AArch64 board, end to end: a tiny network tuned, shared, compiled and verified on it.

`make test-aarch64` runs it with the board's Python, which `aarch64.sh` makes. What is timed there
means nothing; that outputs are right does.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from benchmarks.fleet import note
from fewtune.artifacts import ShareReport, TuneReport
from fewtune.benchmark.benchmark import benchmark_model
from fewtune.benchmark.options import BenchmarkOptions
from fewtune.compile.compile import compile_model
from fewtune.compile.options import CompileOptions
from fewtune.machine.fingerprint import FingerprintOptions, detect_fingerprint
from fewtune.model.import_model import import_model, read_lowered
from fewtune.model.import_options import ImportOptions
from fewtune.options import ShareOptions
from fewtune.runtime.target import target_from_json
from fewtune.sharing.share import share_schedules
from fewtune.task.extract import extract_tasks
from fewtune.tuning.tune import tune
from tests import tuned_tiny
from tests.rpc_boards import boards

TARGET = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1", "num-cores": 1}
MOST_ERROR = 1e-3


def run(python: str, folder: Path) -> float:
    """Everything that a run does, on a board that a Python serves; return the relative error."""
    tuned_tiny.imported()
    models, selection = tuned_tiny.scratch() / "models", tuned_tiny.selection()
    for name in ("import", "tune", "share", "compile", "benchmark"):
        (folder / name).mkdir()
    with boards(1, key="aarch64", python=python) as at:
        own = detect_fingerprint(FingerprintOptions(target=json.dumps(TARGET), device=at))
        target = target_from_json(own.target)
        import_model(
            tuned_tiny.NAME, models, target, own.threads, ImportOptions(), folder / "import"
        )
        lowered = read_lowered(folder / "import")
        tasks = extract_tasks(lowered, target)
        journals, options = folder / "journals", tuned_tiny.OPTIONS
        tune(tasks, selection, own, options, journals, folder / "tune")
        share_schedules(
            tasks,
            selection,
            folder / "tune",
            own,
            ShareOptions(),
            journals,
            folder / "share",
            model_directory=folder,
        )
        compiled = compile_model(
            lowered,
            tasks,
            folder / "share",
            folder / "import",
            own,
            CompileOptions(),
            folder / "compile",
            model=tuned_tiny.NAME,
            strategy="selective",
            say=print,
        )
        report = benchmark_model(
            folder / "import",
            tasks,
            selection,
            0.0,
            TuneReport.read(folder / "tune"),
            ShareReport.read(folder / "share"),
            folder / "compile",
            own,
            BenchmarkOptions(rounds=3),
            folder / "benchmark",
        )
    print(f"{compiled.scheduled_from_log} kernels from the log, variants {sorted(report.variants)}")
    return max(compiled.max_relative_error, report.max_relative_error)


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        error = run(sys.argv[1], Path(scratch))
    print(f"AArch64 (emulated): relative error {error:.1e}, at most {MOST_ERROR:g}")
    note({"aarch64_max_error": error})
    return int(not error <= MOST_ERROR)


if __name__ == "__main__":
    sys.exit(main())
