"""Starting a library beside onnxruntime: the time to its first output, and memory."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import fewtune
from fewtune.deploy.note import read_note

MB = 1e6
# A process of its own each: what one has loaded would help the next.
_CHILD = """
import json, os, sys, time
import numpy
runtime, path, threads, inputs = json.loads(sys.argv[1])
arrays = {name: numpy.zeros(shape, dtype) for name, dtype, shape in inputs}
began_s = time.perf_counter()
if runtime == "fewtune":
    from fewtune import InferenceSession, SessionOptions
else:
    from onnxruntime import InferenceSession, SessionOptions
options = SessionOptions()
options.intra_op_num_threads = threads
session = InferenceSession(path, options, providers=["CPUExecutionProvider"])
session.run(None, arrays)
taken_s = time.perf_counter() - began_s
pages = int(open("/proc/self/statm").read().split()[1])
print(json.dumps([taken_s, pages * os.sysconf("SC_PAGE_SIZE")]))
"""
_LIMIT_S = 120


class StartFigures(NamedTuple):
    """Medians of several processes each; resident memory is that after the first output."""

    library_mb: float
    onnx_mb: float
    start_s: float
    onnxruntime_start_s: float
    resident_mb: float
    onnxruntime_resident_mb: float


def start_figures(library: Path, onnx: Path, rounds: int = 3) -> StartFigures:
    """Start a library and onnxruntime in turns, from a loaded NumPy to the first output.

    Parameters
    ----------
    library : Path
    onnx : Path
        The same model for onnxruntime, its shapes bound. Files beside it that begin with its name
        are its weights.
    rounds : int
        Processes of each.
    """
    note = read_note(library)
    inputs = [(each.name, each.dtype, each.shape) for each in note.functions[0].inputs]
    taken: dict[str, list[tuple[float, float]]] = {"fewtune": [], "onnxruntime": []}
    for _ in range(rounds):
        for runtime, path in (("fewtune", library), ("onnxruntime", onnx)):
            taken[runtime].append(_started(runtime, str(path), note.threads, inputs))
    ours, theirs = (
        [statistics.median(each) for each in zip(*rows, strict=True)] for rows in taken.values()
    )
    return StartFigures(
        library_mb=library.stat().st_size / MB,
        onnx_mb=sum(each.stat().st_size for each in onnx.parent.glob(f"{onnx.name}*")) / MB,
        start_s=ours[0],
        onnxruntime_start_s=theirs[0],
        resident_mb=ours[1] / MB,
        onnxruntime_resident_mb=theirs[1] / MB,
    )


def _started(runtime: str, path: str, threads: int, inputs: object) -> tuple[float, float]:
    package = str(Path(fewtune.__file__).parents[1])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, json.dumps([runtime, path, threads, inputs])],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason"])[-1]
        raise RuntimeError(f"{runtime} could not start {path}: {last}")
    taken_s, resident_bytes = json.loads(done.stdout.splitlines()[-1])
    return float(taken_s), float(resident_bytes)
