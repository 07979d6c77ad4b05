"""An emulated AArch64 board, end to end: a tiny network tuned, shared, compiled and verified on it.

`make test-aarch64` runs it with the board's Python, which `aarch64.sh` makes. What is timed there
means nothing; that outputs are right does. A network in eight bits is compiled for processors of
both kinds of dot products, and run there too.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from onnx import ModelProto, numpy_helper

import fewtune
from benchmarks.fleet import note
from fewtune.artifacts import BenchmarkReport, CompileReport
from fewtune.machine.fingerprint import FingerprintOptions, detect_fingerprint
from fewtune.measure.device import device_of
from fewtune.model.lower import lower
from fewtune.runtime.executable import build_executable, export_library
from fewtune.schedule.defaults import apply_default_schedules
from fewtune.task.analysis import call_counts
from tests import tiny_models
from tests.made.outputs import run_onnxruntime
from tests.quantized_models import quantized_network, simplified
from tests.rpc_boards import boards

TARGET = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1", "num-cores": 1}
MOST_ERROR = 1e-3
# Processors, and what multiplies four bytes on them.
DOT_PRODUCTS = {"neoverse-n1": "sdot", "neoverse-v1": "usdot"}


def run(python: str, folder: Path) -> float:
    """Everything that a run does, on a board that a Python serves; return the relative error."""
    model = tiny_models.write_model(tiny_models.tiny_convolutional_model(), folder)
    options = {"tune": {"batch_size": 3, "least_gain": 0.0}, "benchmark": {"rounds": 3}}
    with boards(1, key="aarch64", python=python) as at:
        target, out = json.dumps(TARGET), folder / "out"
        fewtune.tune(model, trials=6, target=target, device=at, out=out, options=options)
    compiled, report = CompileReport.read(out / "compile"), BenchmarkReport.read(out / "benchmark")
    print(f"{compiled.scheduled_from_log} kernels from the log, variants {sorted(report.variants)}")
    return max(compiled.max_relative_error, report.max_relative_error)


def bytes_are_right(python: str, folder: Path, mcpu: str, instruction: str) -> bool:
    """Whether a network in eight bits uses a processor's dot products, and is right on a board."""
    model, feeds = quantized_network(folder)
    with boards(1, key=mcpu, python=python) as at:
        wanted = json.dumps({**TARGET, "mcpu": mcpu})
        device = device_of(detect_fingerprint(FingerprintOptions(target=wanted, device=at)))
        lowered = lower(simplified(model), device.target, "NHWC")
        names = list(call_counts(lowered))
        scheduled = apply_default_schedules(lowered, names, device.target)
        library = folder / "bytes.so"
        export_library(build_executable(scheduled, device.target), library, device.link)
        found = device.load(library).outputs([feeds[value.name] for value in model.graph.input])
    read = ["aarch64-linux-gnu-objdump", "-d", "--no-show-raw-insn", str(library)]
    code = subprocess.run(read, capture_output=True, text=True, check=True).stdout
    count = len(re.findall(rf"\t{instruction}\t", code))
    (expected,) = run_onnxruntime(model, feeds, 1)
    # The last kernel writes floats, of bytes that may be rounded the other way.
    steps = np.abs(found[0] - expected).max() / _step_of(model)
    print(f"bytes on {mcpu}: {count} of {instruction}, {steps:.2f} steps from onnxruntime")
    return count > 0 and steps <= 1.01


def _step_of(model: ModelProto) -> float:
    """The scale of the bytes that a quantised model's output is made of."""
    (last,) = [node for node in model.graph.node if model.graph.output[0].name in node.output]
    scales = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    return float(scales[last.input[1]])


def main() -> int:
    python = sys.argv[1]
    with tempfile.TemporaryDirectory() as scratch:
        error = run(python, Path(scratch))
        right = [bytes_are_right(python, Path(scratch), *each) for each in DOT_PRODUCTS.items()]
    print(f"AArch64 (emulated): relative error {error:.1e}, at most {MOST_ERROR:g}")
    note({"aarch64_max_error": error})
    return int(not (error <= MOST_ERROR and all(right)))


if __name__ == "__main__":
    sys.exit(main())
