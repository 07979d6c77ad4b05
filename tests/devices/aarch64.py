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

from benchmarks.fleet import note
from fewtune.artifacts import SelectionTiming
from fewtune.benchmark.benchmark import benchmark_model
from fewtune.benchmark.options import BenchmarkOptions
from fewtune.benchmark.result import ResultFolders
from fewtune.compile.compile import TunedParts, compile_model
from fewtune.compile.options import CompileOptions
from fewtune.machine.fingerprint import FingerprintOptions, detect_fingerprint
from fewtune.measure.device import device_of
from fewtune.model.import_model import import_model, read_lowered
from fewtune.model.import_options import ImportOptions
from fewtune.model.lower import lower
from fewtune.options import ShareOptions
from fewtune.prediction.options import PredictOptions
from fewtune.prediction.predict_apart import PredictJob, predict_apart
from fewtune.runtime.executable import build_executable
from fewtune.runtime.linking import export_library
from fewtune.runtime.target import target_from_json
from fewtune.schedule.defaults.default import apply_default_schedules
from fewtune.sharing.share import share_schedules
from fewtune.task.analysis import call_counts
from fewtune.task.extract import extract_tasks, write_tasks
from fewtune.tuning.tune import tune
from fewtune.verify.session import run_onnxruntime
from tests import tuned_tiny
from tests.quantized_models import quantized_network, simplified
from tests.rpc_boards import boards

TARGET = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1", "num-cores": 1}
MOST_ERROR = 1e-3
# Processors, and what multiplies four bytes on them.
DOT_PRODUCTS = {"neoverse-n1": "sdot", "neoverse-v1": "usdot"}


def run(python: str, folder: Path) -> float:
    """Everything that a run does, on a board that a Python serves; return the relative error."""
    tuned_tiny.imported()
    models, selection = tuned_tiny.scratch() / "models", tuned_tiny.selection()
    for name in (
        "import",
        "tasks",
        "predict",
        "select",
        "tune",
        "share",
        "compile",
        "benchmark",
        "machine",
    ):
        (folder / name).mkdir()
    with boards(1, key="aarch64", python=python) as at:
        own = detect_fingerprint(FingerprintOptions(target=json.dumps(TARGET), device=at))
        target = target_from_json(own.target)
        import_model(
            tuned_tiny.NAME, models, target, own.threads, ImportOptions(), folder / "import"
        )
        lowered = read_lowered(folder / "import")
        tasks = extract_tasks(lowered)
        write_tasks(tasks, tuned_tiny.NAME, own.target, folder / "tasks")
        own.write(folder / "machine")
        predict_apart(
            PredictJob(
                tasks=folder / "tasks",
                fingerprint=folder / "machine",
                options=PredictOptions(),
                directory=folder / "predict",
                model=tuned_tiny.NAME,
                strategy="selective",
            )
        )
        selection.write(folder / "select")
        SelectionTiming(selecting_s=0.0).write(folder / "select")
        journals, options = folder / "journals", tuned_tiny.OPTIONS
        tune(tasks, selection, own, options, journals, folder / "tune")
        share_schedules(
            tasks,
            selection,
            folder / "predict",
            folder / "tune",
            own,
            ShareOptions(),
            journals,
            folder / "share",
            model_directory=folder,
        )
        compiled = compile_model(
            TunedParts(
                tuned_tiny.NAME, "selective", lowered, tasks, folder / "import", folder / "share"
            ),
            own,
            CompileOptions(),
            folder / "compile",
            say=print,
        )
        report = benchmark_model(
            ResultFolders(
                folder / "import",
                folder / "tasks",
                folder / "predict",
                folder / "select",
                folder / "tune",
                folder / "share",
                folder / "compile",
            ),
            own,
            BenchmarkOptions(rounds=3),
            folder / "benchmark",
        )
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
