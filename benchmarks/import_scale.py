"""How an import grows with a model: processor time and memory of `fewtune.check`'s work.

    python benchmarks/import_scale.py [--nodes 250 1000 4000] [--megabytes 10 100 400]
        [--output results/import_scale.json]

Each graph is made of equal residual layers of eight nodes with seeded weights, and is imported,
verified and split into tasks in a process of its own, behind one of eight nodes, which loads the
libraries that every import takes. A row has `nodes`, `weights_mb`, `seconds` of its processor time,
`peak_mb`, the most resident memory of its process during the import, beyond what was resident
before, and the bounds: 5 s per 1,000 nodes plus 3 s per 100 MB, and four times the weights.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

_LAYER, _ROWS, _STEP = 8, 8, 8
_FLOAT_BYTES, _MB = 4, 1e6


def residual_layers(nodes: int, megabytes: float) -> onnx.ModelProto:
    """Layers of a product, a SiLU, a sum with the layer's input, and a norm of its mean."""
    random, layers = np.random.default_rng(0), max(1, nodes // _LAYER)
    width = int(np.sqrt(megabytes * _MB / _FLOAT_BYTES / layers)) // _STEP * _STEP or _STEP
    made, weights, last = [], [], "x"
    for layer in range(layers):
        product = random.standard_normal((width, width), np.float32) / np.sqrt(np.float32(width))
        weights.append(numpy_helper.from_array(product, f"w{layer}"))
        weights.append(numpy_helper.from_array(product[0], f"b{layer}"))
        steps = (
            ("MatMul", [last, f"w{layer}"]),
            ("Add", ["0", f"b{layer}"]),
            ("Sigmoid", ["1"]),
            ("Mul", ["1", "2"]),
            ("Add", ["3", last]),
            ("ReduceMean", ["4"]),
            ("Sub", ["4", "5"]),
            ("Tanh", ["6"]),
        )
        for place, (operator, given) in enumerate(steps):
            inputs = [f"{layer}_{name}" if name.isdecimal() else name for name in given]
            made.append(helper.make_node(operator, inputs, [f"{layer}_{place}"]))
            if operator == "ReduceMean":
                made[-1].attribute.append(helper.make_attribute("axes", [-1]))
        last = f"{layer}_{_LAYER - 1}"
    ends = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [_ROWS, width])
        for name in ("x", last)
    ]
    graph = helper.make_graph(made, "layers", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def measured(path: Path) -> dict[str, Any]:
    """Import a model in this process."""
    from fewtune.model_check.check import check_here
    from fewtune.model_check.report import CheckJob

    with tempfile.TemporaryDirectory() as folder:
        onnx.save(residual_layers(_LAYER, 0), Path(folder) / "layer.onnx")
        check_here(CheckJob(model=str(Path(folder) / "layer.onnx")))
    # Resets the peak. That of `getrusage` begins with the parent's memory, where a child is forked.
    Path("/proc/self/clear_refs").write_text("5")
    before_mb, began_s = memory_mb("VmRSS"), time.process_time()
    found = check_here(CheckJob(model=str(path)))
    seconds, peak_mb = time.process_time() - began_s, memory_mb("VmHWM") - before_mb
    return {"ok": found["ok"], "seconds": round(seconds, 2), "peak_mb": round(peak_mb)}


def memory_mb(kind: str) -> float:
    """Resident memory of this process: VmRSS, as it is now, or VmHWM, its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(dict(line.split(":", 1) for line in lines)[kind].split()[0]) * 1024 / _MB


def row_of(nodes: int, megabytes: float) -> dict[str, Any]:
    """Measure a graph in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path, model = Path(folder) / "layers.onnx", residual_layers(nodes, megabytes)
        onnx.save(model, path)
        count, weights_mb = len(model.graph.node), path.stat().st_size / _MB
        done = subprocess.run(
            [sys.executable, __file__, "--measure", path],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    bounds = {"most_s": 5 * count / 1000 + 3 * weights_mb / 100, "most_mb": 4 * weights_mb}
    return {
        "nodes": count,
        "weights_mb": round(weights_mb, 1),
        **json.loads(done.stdout.splitlines()[-1]),
        **{name: round(bound, 1) for name, bound in bounds.items()},
    }


def main() -> None:
    """Measure every graph, or one in this process."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[250, 1000, 4000])
    parser.add_argument("--megabytes", type=float, nargs="+", default=[10, 100, 400])
    parser.add_argument("--output", type=Path)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured(options.measure)), flush=True)
        # TVM's back ends may take minutes to unload what they compiled.
        os._exit(0)
    rows = []
    for nodes in options.nodes:
        for megabytes in options.megabytes:
            rows.append(row_of(nodes, megabytes))
            print(json.dumps(rows[-1]), flush=True)
    if options.output:
        options.output.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
