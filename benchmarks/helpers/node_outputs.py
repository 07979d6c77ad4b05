"""Outputs of ONNX's node tests, by onnxruntime and by fewtune, and how they differ."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from fewtune.errors import VerificationError


def selected_boxes(rows: np.ndarray) -> np.ndarray:
    """The boxes selected, without the rows of -1 that pad them to the most that there can be."""
    return rows[: 1 + int(np.flatnonzero(rows[:, 0] >= 0).max(initial=-1))]


def onnxruntime_outputs(model: onnx.ModelProto, inputs: Sequence[Any]) -> list[Any]:
    """What onnxruntime makes of a test's inputs; raises where it does not run it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [value.name for value in model.graph.input]
    return session.run(None, dict(zip(names, inputs, strict=True)))


def difference(made: list[Any], wanted: list[Any], rtol: float, atol: float) -> str:
    """How outputs differ by more than a test allows; empty where they do not."""
    if len(made) != len(wanted):
        return f"{len(made)} outputs for {len(wanted)}"
    for number, (ours, theirs) in enumerate(zip(made, wanted, strict=True)):
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        if ours.shape != theirs.shape:
            return f"output {number} is {list(ours.shape)} for {list(theirs.shape)}"
        if ours.dtype != theirs.dtype:
            return f"output {number} is {ours.dtype} for {theirs.dtype}"
        if ours.dtype.kind not in "fiub":
            ours, theirs = ours.astype(np.float32), theirs.astype(np.float32)
        if ours.dtype.kind == "f":
            # A few roundings: half precision's is 1e-3 alone, and sums of large terms may come to
            # nearly nothing.
            rounding = 4 * float(np.finfo(ours.dtype).eps)
            sizes = np.abs(theirs[np.isfinite(theirs)])
            rtol = max(rtol, rounding)
            atol = max(atol, rounding * float(sizes.max(initial=0)))
            close = np.isclose(
                ours.astype(np.float64), theirs.astype(np.float64), rtol, atol, equal_nan=True
            )
        else:
            close = ours == theirs
        if not np.all(close):
            wrong = np.size(close) - np.count_nonzero(close)
            return f"output {number}: {wrong} of {np.size(close)} differ"
    return ""


def compiled_outputs(
    model: onnx.ModelProto, inputs: list[np.ndarray], check: Callable[[list[np.ndarray]], str]
) -> list[np.ndarray]:
    """Import, schedule by default, export, load and run a model.

    ``check`` says what is wrong with outputs; the import leaves optional steps out by it.
    """
    from fewtune.model.import_options import ImportOptions
    from fewtune.model.lower_checked import lower_checked
    from fewtune.onnx_graph.bind import bind_shapes
    from fewtune.onnx_graph.checks import check_types
    from fewtune.runtime.executable import CompiledModel
    from fewtune.runtime.target import resolve_target

    target = resolve_target("auto", 1)
    check_types(model)

    def checked(compiled: CompiledModel) -> float:
        problem = check(compiled.outputs(inputs))
        if problem:
            raise VerificationError(problem)
        return 0.0

    shapes = {
        value.name: list(array.shape)
        for value, array in zip(model.graph.input, inputs, strict=True)
    }
    made = lower_checked(bind_shapes(model, shapes, {}), target, ImportOptions(), checked)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "model.so"
        made.executable.export_library(str(path))
        return CompiledModel(path, target).outputs(inputs)
