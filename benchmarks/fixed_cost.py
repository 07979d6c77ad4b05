"""What a run costs besides tuning: a network of three convolutions by the commands of a user.

    python benchmarks/fixed_cost.py [--output results/fixed_cost.json]

Works in a copy of the checkout, with Python's bytecode written as `make install` leaves it. Prints
the seconds of each stage, then one line of JSON: `run_s`, `again_s`, `add_s`, `help_s`,
`import_tvm_s`, and `api_s`, the same network by `fewtune.tune` in a new process. Nothing else may
run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

PROJECT = Path(__file__).parent.parent
_LAYERS = ((32, 3), (64, 1), (64, 3))
_CHANNELS, _SIDE = 16, 28
_LINE = re.compile(r"(\d\d):(\d\d):(\d\d) ([\w@-]+):")


def three_convolutions() -> onnx.ModelProto:
    """Convolutions 3x3, 1x1, 3x3 of 28x28, each with a ReLU; seeded weights."""
    random = np.random.default_rng(0)
    nodes, weights, last, channels = [], [], "image", _CHANNELS
    for place, (filters, side) in enumerate(_LAYERS):
        shape = (filters, channels, side, side)
        scale = np.sqrt(2 / (channels * side * side))
        values = (scale * random.standard_normal(shape)).astype(np.float32)
        weights.append(numpy_helper.from_array(values, f"w{place}"))
        pads = [side // 2] * 4
        nodes.append(helper.make_node("Conv", [last, f"w{place}"], [f"c{place}"], pads=pads))
        nodes.append(helper.make_node("Relu", [f"c{place}"], [f"r{place}"]))
        last, channels = f"r{place}", filters
    kind = onnx.TensorProto.FLOAT
    given = helper.make_tensor_value_info("image", kind, [1, _CHANNELS, _SIDE, _SIDE])
    result = helper.make_tensor_value_info(last, kind, [1, channels, _SIDE, _SIDE])
    graph = helper.make_graph(nodes, "three", [given], [result], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def timed(arguments: list[str], folder: Path) -> tuple[float, str]:
    """Seconds of a Python command in ``folder``, and what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    environment["PYTHONPYCACHEPREFIX"] = str(folder.parent / "bytecode")
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(arguments)} ended with exit code {done.returncode}")
    return time.perf_counter() - began, done.stdout


def stage_seconds(shown: str) -> dict[str, int]:
    """Seconds of each stage, by the lines that a run printed: they begin with the time of day."""
    ended: dict[str, int] = {}
    for hours, minutes, seconds, stage in _LINE.findall(shown):
        ended[stage] = 3600 * int(hours) + 60 * int(minutes) + int(seconds)
    before, taken = min(ended.values(), default=0), {}
    for stage, at in ended.items():
        taken[stage], before = at - before, at
    return taken


def measured(folder: Path) -> dict[str, float]:
    """Seconds of each command, in a new copy of the checkout at ``folder``."""
    subprocess.run(["git", "clone", "--quiet", str(PROJECT), str(folder)], check=True)
    onnx.save(three_convolutions(), folder / "three.onnx")
    packages = sysconfig.get_paths()["purelib"]
    code = [packages, "fewtune", "pipelines", "stages"]
    timed(["-m", "compileall", "-q", "-q", "-j", "0", *code], folder)
    # The files of packages, read for the first time, come from the disk.
    timed(
        ["-c", "import tvm, dvc.repo, mlflow, onnxruntime, fewtune.pipelines.commands.models"],
        folder,
    )
    figures = {"import_tvm_s": timed(["-c", "import tvm"], folder)[0]}
    figures["help_s"] = timed(["-m", "fewtune.pipelines.cli", "--help"], folder)[0]
    add = ["-m", "fewtune.pipelines.cli", "add", "three.onnx", "--name", "three"]
    figures["add_s"] = timed(add, folder)[0]
    run = ["-m", "fewtune.pipelines.cli", "run", "three"]
    figures["run_s"], shown = timed(run, folder)
    for stage, seconds in stage_seconds(shown).items():
        print(f"{stage}: {seconds} s")
    figures["again_s"] = timed(run, folder)[0]
    call = "import fewtune; fewtune.tune('three.onnx')"
    figures["api_s"] = timed(["-c", call], folder)[0]
    return {name: round(value, 2) for name, value in figures.items()}


def main() -> None:
    """Time the commands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="a file that gets the line of JSON, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        line = json.dumps(measured(Path(scratch) / "checkout"))
    if options.output:
        options.output.write_text(line + "\n")
    print(line)


if __name__ == "__main__":
    main()
