"""Memory of all processes over a long run: ``python benchmarks/parts/memory.py [--trials 2000]``.

Upstream restarts its build workers every batch because they leak; ours live on. A 2,000-trial run
has to stay under 4 GiB and must not grow over its second half.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.helpers.common import alone
from benchmarks.stock.tuning_loop import model_tasks
from fewtune.machine.fingerprint import FingerprintOptions, detect_fingerprint
from fewtune.options import TuneOptions
from fewtune.tuning.tune import run_session
from fewtune.util.files import write_text

_MIB = 2**20


def resident_mib() -> float:
    """Memory of this process and all below it; pages that they share count once each."""
    total = 0
    for process in [psutil.Process(os.getpid()), *psutil.Process().children(recursive=True)]:
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total / _MIB


def main() -> None:
    """Tune for so many trials and watch."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    with alone("memory"):
        run(arguments)


def run(arguments: argparse.Namespace) -> None:
    """Tune while the memory of all processes is watched, and print what they took."""
    fingerprint = detect_fingerprint(FingerprintOptions())
    tasks = model_tasks("resnet50", fingerprint, 8)
    options = TuneOptions(
        trials_per_task=max(1, arguments.trials // len(tasks)),
        allocation="round_robin",
        least_gain=0.0,
    )
    samples: list[tuple[float, float]] = []
    stop = threading.Event()

    def watch() -> None:
        began = time.monotonic()
        while not stop.wait(2.0):
            samples.append((time.monotonic() - began, resident_mib()))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    with tempfile.TemporaryDirectory() as scratch:
        names = [task.info.name for task in tasks]
        state = run_session(tasks, names, fingerprint, options, Path(scratch))
    stop.set()
    watcher.join()
    figures = np.asarray([mib for _, mib in samples])
    half = len(figures) // 2
    quarter = half + len(figures[half:]) // 2
    result = {
        "trials": state.trials,
        "tuning_s": round(state.elapsed_s, 1),
        "peak_mib": round(float(figures.max())),
        "third_quarter_median_mib": round(float(np.median(figures[half:quarter]))),
        "last_quarter_median_mib": round(float(np.median(figures[quarter:]))),
        "device": fingerprint.device,
        "date": time.strftime("%Y-%m-%d"),
    }
    print(json.dumps(result))
    if arguments.output:
        write_text(arguments.output, json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
