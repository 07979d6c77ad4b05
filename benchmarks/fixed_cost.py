"""What a run costs besides tuning: a network of three convolutions by the commands of a user.

    python benchmarks/fixed_cost.py [--output results/fixed_cost.json]

Works in a copy of the checkout, with Python's bytecode written as `make install` leaves it. Prints
one line of JSON: `run_s`, `again_s`, `add_s`, `help_s`,
`import_tvm_s`, and `api_s`, the same network by `fewtune.tune` in a new process. Nothing else may
run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import onnx

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.helpers.tiny_checkout import PROJECT, three_convolutions


def timed(arguments: list[str], folder: Path) -> float:
    """Seconds of a Python command in ``folder``."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    environment["PYTHONPYCACHEPREFIX"] = str(folder.parent / "bytecode")
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    if done.returncode:
        sys.exit(f"{' '.join(arguments)} ended with exit code {done.returncode}")
    return time.perf_counter() - began


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
    figures = {"import_tvm_s": timed(["-c", "import tvm"], folder)}
    figures["help_s"] = timed(["-m", "fewtune.pipelines.cli", "--help"], folder)
    add = ["-m", "fewtune.pipelines.cli", "add", "three.onnx", "--name", "three"]
    figures["add_s"] = timed(add, folder)
    run = ["-m", "fewtune.pipelines.cli", "run", "three"]
    figures["run_s"] = timed(run, folder)
    figures["again_s"] = timed(run, folder)
    call = "import fewtune; fewtune.tune('three.onnx')"
    figures["api_s"] = timed(["-c", call], folder)
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
