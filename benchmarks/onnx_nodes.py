"""ONNX's own node tests through import, default schedules and an exported library.

Each test of ``onnx.backend.test.case.node`` that onnxruntime runs is imported, gets default
schedules, is exported, loaded and compared with onnxruntime. Inputs that steer shapes (axes, sizes,
pads) are constants in real models, and are bound here. Prints a table by operator; the last line is
JSON. Two processes share the tests, each test in a fork; one that dies counts as crashed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import sys
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.helpers.forked import in_fork
from fewtune.errors import FewtuneError, VerificationError, last_line
from fewtune.util.table import Table


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
    """Import, schedule by default and run a model.

    ``check`` says what is wrong with outputs; the import leaves optional steps out by it.
    """
    from fewtune.model.lower import lower_checked
    from fewtune.onnx_graph.bind import bind_shapes
    from fewtune.onnx_graph.checks import check_types, refuse_untuned
    from fewtune.options import ImportOptions
    from fewtune.runtime.executable import CompiledModel
    from fewtune.runtime.target import resolve_target

    target = resolve_target("auto", 1)
    check_types(model)
    refuse_untuned(model)

    outputs: list[np.ndarray] = []

    def checked(compiled: CompiledModel) -> float:
        outputs[:] = compiled.outputs(inputs)
        problem = check(outputs)
        if problem:
            raise VerificationError(problem)
        return 0.0

    shapes = {
        value.name: list(array.shape)
        for value, array in zip(model.graph.input, inputs, strict=True)
    }
    lower_checked(bind_shapes(model, shapes, {}), target, ImportOptions(), checked)
    return outputs


# Inputs that decide shapes, or which of a node's graphs runs, by their names in ONNX's definitions.
_STEERING = """
axes axis shape pads repeats K starts ends steps split sizes scales roi output_shape depth
start limit delta M trip_count cond condition k max_output_boxes_per_class iou_threshold
score_threshold dft_length size frame_step frame_length block_shape image_shape ratio
training_mode num_mel_bins sample_rate lower_edge_hertz upper_edge_hertz
"""
STEERING = frozenset(_STEERING.split())
STEERING_BY_OPERATOR = frozenset(
    {("ConstantOfShape", "input"), ("Pad", "constant_value"), ("Compress", "condition")}
)


def bind_steering(model: onnx.ModelProto, inputs: list[Any]) -> tuple[onnx.ModelProto, list[Any]]:
    """Turn inputs that steer shapes into initialisers.

    Returns
    -------
    model : ModelProto
    inputs : list of arrays
        Those that are still inputs.
    """
    bound = onnx.ModelProto()
    bound.CopyFrom(model)
    steering = {name for node in model.graph.node for name in _steering_inputs(node, model)}
    kept_values, kept_arrays = [], []
    for value, array in zip(model.graph.input, inputs, strict=True):
        if value.name in steering and isinstance(array, np.ndarray):
            bound.graph.initializer.append(numpy_helper.from_array(array, value.name))
        else:
            kept_values.append(value)
            kept_arrays.append(array)
    if not kept_values:
        # A model needs an input, though nothing reads it.
        kept_values.append(helper.make_tensor_value_info("unused", onnx.TensorProto.FLOAT, [1]))
        kept_arrays.append(np.zeros(1, np.float32))
    del bound.graph.input[:]
    bound.graph.input.extend(kept_values)
    return bound, kept_arrays


def _steering_inputs(node: onnx.NodeProto, model: onnx.ModelProto) -> Iterator[str]:
    version = max(o.version for o in model.opset_import if o.domain == node.domain)
    try:
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    except onnx.defs.SchemaError:
        return
    for position, name in enumerate(node.input):
        formal = schema.inputs[min(position, len(schema.inputs) - 1)]
        if formal.name in STEERING or (node.op_type, formal.name) in STEERING_BY_OPERATOR:
            yield name


SECONDS_A_TEST = 90
OUTCOMES = ("right", "wrong", "crashed", "refused")


class Result(NamedTuple):
    """What became of one test."""

    name: str
    operator: str
    outcome: str
    reason: str
    seconds: float


def node_tests() -> dict[str, Any]:
    """The node tests by name, without those whose operator is expanded into its function."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    return {case.name: case for case in cases if "_expanded" not in case.name}


def operator_of(case: Any) -> str:
    """The operator that a test is of: that of its last node, under its domain."""
    named = [node for node in case.model.graph.node if node.op_type not in ("Constant", "Identity")]
    node = (named or list(case.model.graph.node))[-1]
    return f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type


def run_test(case: Any) -> Result | None:
    """Put one test through; None where onnxruntime does not run it."""
    began_s = time.perf_counter()
    given, expected = case.data_sets[0]
    inputs = [np.asarray(each) if isinstance(each, np.generic) else each for each in given]
    try:
        ran = onnxruntime_outputs(case.model, inputs)
    except Exception:  # noqa: BLE001 (what it does not run is not counted)
        return None

    def result(outcome: str, reason: str = "") -> Result:
        seconds = round(time.perf_counter() - began_s, 2)
        return Result(case.name, operator_of(case), outcome, reason, seconds)

    def check(made: list[np.ndarray]) -> str:
        if operator_of(case) == "NonMaxSuppression":
            made = [selected_boxes(each) for each in made]
        problem = difference(made, ran, case.rtol, case.atol)
        # Where onnxruntime differs from ONNX's own answer, either is right.
        return problem and difference(made, expected, case.rtol, case.atol) and problem

    try:
        model, given = bind_steering(case.model, inputs)
        problem = check(compiled_outputs(model, given, check))
    except VerificationError as fault:
        return result("wrong", str(fault))
    except FewtuneError as fault:
        return result("refused", " ".join(str(fault).split()))
    except Exception as fault:  # noqa: BLE001 (every other exception is a crash, by name)
        trace = traceback.extract_tb(fault.__traceback__)
        ours = [frame for frame in trace if "/fewtune/" in frame.filename] or list(trace)
        place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"
        return result("crashed", f"{type(fault).__name__} at {place}: {last_line(fault)}")
    return result("wrong", problem) if problem else result("right")


known_tests = cache(node_tests)


def _load() -> None:
    """Load what every test needs, before it is forked."""
    os.environ["TVM_NUM_THREADS"] = "1"
    warnings.simplefilter("ignore")
    known_tests()
    importlib.import_module("fewtune.model.import_model")


def run_apart(name: str) -> Result | None:
    """Put a test through in a fork of this process, which it may take along."""
    case = known_tests()[name]

    def work() -> None:
        result = run_test(case)
        print(f"\n{json.dumps(result)}", flush=True)

    ended = in_fork(work, SECONDS_A_TEST)
    if ended.code == 0:
        said = json.loads(ended.text.splitlines()[-1])
        return said and Result(*said)
    fault = f"still running after {SECONDS_A_TEST} s" if ended.code is None else "the process died"
    return Result(name, operator_of(case), "crashed", fault, round(ended.seconds, 2))


def table(results: list[Result]) -> Table:
    """Outcomes by operator; operators whose tests are all right are left out."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        counts[result.operator][result.outcome] += 1
    shown = sorted(name for name in counts if counts[name].keys() - {"right"})
    rows = [[name, *(str(counts[name][outcome]) for outcome in OUTCOMES)] for name in shown]
    return Table(["operator", *OUTCOMES], rows)


def main() -> None:
    """Run the tests, print the table and the sums."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operator", nargs="+", help="only tests of these operators")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--output", type=Path, help="JSON file")
    arguments = parser.parse_args()
    cases = node_tests()
    names = [
        name
        for name in sorted(cases)
        if not arguments.operator or operator_of(cases[name]) in arguments.operator
    ]
    results = []
    with multiprocessing.get_context("spawn").Pool(arguments.processes, _load) as pool:
        for result in filter(None, pool.imap_unordered(run_apart, names)):
            results.append(result)
            if result.outcome != "right":
                said = f"{result.outcome:8} {result.name} [{result.operator}] {result.reason}"
                print(said, flush=True)
    print(table(results).markdown())
    outcomes = Counter(result.outcome for result in results)
    summary = {"tests": len(names), "onnxruntime": len(results)}
    summary |= {outcome: outcomes[outcome] for outcome in OUTCOMES}
    if arguments.output:
        lines = [result._asdict() for result in sorted(results)]
        arguments.output.write_text(json.dumps(summary | {"results": lines}, indent=1) + "\n")
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
