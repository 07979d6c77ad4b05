"""What the check of outputs refuses: a thousand seeded faults, and right models beside them.

Models are imported as a run imports them, with default schedules, and checked as import, compile
and compare check them: outputs, and what the kernels write. Faults are seeded while a library
runs: before or after one call of a kernel its weights, or what it writes, are changed, so that the
wrong values go through the rest of the library as a wrong kernel's would. Wrong attributes are
written into the ONNX graph; what onnxruntime computes of it stands in for what kernels write.

Inputs that models seldom get, such as one infinite element, refuse nothing: a fault that only they
show is told to the user.

A fault has no effect if its kernel (or operator) writes the same numbers with it as without it, to
two units in the last place, bytes exactly, on every draw: channels swapped that are both zero, a
row that was zero, a weight that multiplies zeros. These are counted apart; whether outputs change
is not asked.

Right models are practice networks, those of a folder of cases, and node tests of ONNX whose
published result TVM reproduces. Of small ones a second library is checked, without any schedules.

Each model's result is written at once, and kept: what is there is not run again.

Usage: python -m benchmarks.check_power [--faults N] [--cases FOLDER] [--again]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import ModelProto

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fewtune
from benchmarks.helpers.check_power_table import tables, totals
from benchmarks.helpers.common import one_line_errors
from benchmarks.helpers.models import model_of
from benchmarks.helpers.power_faults import Fault, Mutated, noted, seeded_faults, wrong_attributes
from benchmarks.onnx_nodes import node_tests
from fewtune.errors import VerificationError
from fewtune.model.light import light_model
from fewtune.model.lower import Lowered, lower_checked
from fewtune.onnx_graph import simplify as prepare
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.onnx_graph.external_data import light, load
from fewtune.onnx_graph.session import OnnxruntimeSession
from fewtune.options import ImportOptions
from fewtune.runtime.executable import CompiledModel, build_executable
from fewtune.runtime.target import resolve_target
from fewtune.runtime.tvm import set_threads, tvm
from fewtune.stages.commit import commit
from fewtune.util.files import canonical_json, write_text
from fewtune.verify.comparison import compare, compare_outputs
from fewtune.verify.draws import drawn_inputs, rare_inputs
from fewtune.verify.intermediate import IntermediateValues
from fewtune.verify.locate import with_outputs
from fewtune.verify.make_reference import make_reference
from fewtune.verify.reference import Reference
from fewtune.verify.taps import ROOM
from fewtune.verify.values import known_values, tensor_specs

THREADS = 2
Arrays = list[np.ndarray]


class Subject(NamedTuple):
    """A model imported, with its reference."""

    made: Lowered[CompiledModel]
    reference: Reference
    order: list[str]

    def inputs(self, draw: int) -> Arrays:
        feeds = self.reference.checked[draw].draw.feeds
        return [feeds[name] for name in self.order]

    def told(self, compiled: CompiledModel | Mutated) -> set[str]:
        """The draws of rare inputs on which a library differs."""
        run = lambda feeds: compiled.outputs([feeds[name] for name in self.order])  # noqa: E731
        return set(self.reference.rare_differences(run))

    @property
    def rare(self) -> list[Arrays]:
        feeds = [checked.draw.feeds for checked in self.reference.rare]
        return [[each[name] for name in self.order] for each in feeds]

    @property
    def draws(self) -> range:
        return range(len(self.reference.checked))

    def used(self, compiled: CompiledModel | Mutated) -> tuple[float, str]:
        """The share of its allowance that a library uses, and what differs."""
        found = self.reference.check_library(compiled, self.order)
        return float(found.allowances), found.text


def subject(model: ModelProto, target: tvm.target.Target) -> Subject:
    """Import a model as a run does; whether it is right is not asked yet."""
    bound = bind_shapes(model, {}, {})
    simplified = prepare.simplify(bound)
    inputs, outputs = tensor_specs(bound)
    draws = drawn_inputs(simplified, inputs, 0)
    rare = rare_inputs(simplified, inputs, draws[0])
    reference = make_reference(bound, simplified, outputs, draws, THREADS, 0, rare)
    order = [spec.name for spec in inputs]
    made = lower_checked(bound, target, ImportOptions(), lambda compiled: compiled)
    inside = IntermediateValues(bound, simplified, reference.feeds, THREADS, 0)
    reference.taps[:] = inside.taps(made.found, order)
    return Subject(made, reference, order)


FAULTY = [
    "light:squeezenet",
    "light:shufflenet",
    "mobilenet_v2",
    "orientation",
    "wakeword",
    "bert_mini",
    "ppocr_rec",
    "resnet50_v1",
    "squeezenet_v1_1-int8",
    "shifts",
]
RIGHT = [f"practice_{number}" for number in range(1, 5)]
NODE_TESTS = 60
_LAST_PLACES = 2 * 2.0**-23
_SHIFTS = """<ir_version: 8, opset_import: ["": 11]>
    shifts (uint32[16] x, uint32[16] by) => (uint32[16] y) {
        a = BitShift <direction = "LEFT"> (x, by)
        y = BitShift <direction = "RIGHT"> (a, by)
    }"""
# Dimensions that the cases leave open.
_CASES = {
    "groupnorm_dyn": {"batch": 1},
    "detr_topk": {"batch": 1},
    "qdq_cnn": {"N": 2},
    "stale_shapes": {"N": 4},
}


def _model(name: str) -> ModelProto:
    """A model by name, bound to its shapes; of the onnx package with seeded weights."""
    light = name.removeprefix("light:")
    if light != name:
        return light_model(light, 0)
    if name == "shifts":
        return onnx.parser.parse_model(_SHIFTS)
    file, given = model_of(name, Path(".fewtune/check_power"))
    shapes, sizes = (
        {each: values[0] for each, values in several.items()}
        for several in (given["shapes"], given["dimensions"])
    )
    return bind_shapes(load(file), shapes, sizes)


def outcome(model: Subject, mutated: Mutated, fault: Fault) -> str:
    """``refused``, ``told`` of an input that models seldom get, ``missed`` or ``no effect``."""
    mutated.fault = fault
    if not model.used(mutated)[0] <= 1:
        return "refused"
    if model.told(mutated) - model.told(model.made.found):
        return "told"
    for inputs in [*map(model.inputs, model.draws), *model.rare]:
        mutated.fault = fault
        wrong = mutated.own_result(inputs, fault)
        mutated.fault = None
        if not _same(wrong, mutated.own_result(inputs, fault)):
            return "missed"
    return "no effect"


def _same(wrong: np.ndarray, right: np.ndarray) -> bool:
    """Equal to two units in the last place of float32."""
    if right.dtype.kind != "f":
        return bool(np.array_equal(wrong, right))
    return bool(np.allclose(wrong, right, rtol=_LAST_PLACES, atol=0.0, equal_nan=True))


def attribute_outcomes(model: Subject, count: int, generator: np.random.Generator) -> Counter[str]:
    """Outcomes of wrong attributes; what onnxruntime computes stands in for the kernels' values."""
    simplified, reference = model.made.simplified.whole(), model.reference
    known, outputs = known_values(simplified), [v.name for v in simplified.graph.output]
    inside = {t.expected.name: t.expected for t in reference.taps if t.expected.name in known}
    faults = wrong_attributes(simplified)
    found: Counter[str] = Counter()
    for place in generator.permutation(len(faults))[:count]:
        own = simplified.graph.node[faults[place].node].output[0]
        names = [*outputs, *(name for name in [*inside, own] if name not in outputs)]
        names = list(dict.fromkeys(names))
        wrong, right = (
            OnnxruntimeSession(with_outputs(light(each), names, known), THREADS)
            for each in (faults[place].applied(simplified), simplified)
        )
        refused, same = False, True
        for number, checked in enumerate(reference.checked):
            theirs = dict(zip(names, wrong.run(checked.draw.feeds), strict=True))
            ours = dict(zip(names, right.run(checked.draw.feeds), strict=True))
            same &= _same(theirs[own], ours[own])
            given = [theirs[name] for name in outputs]
            refused |= not compare_outputs(given, checked.outputs).allowances <= 1
            if number == 0:
                refused |= any(
                    not compare(theirs[name], each, ROOM).allowances <= 1
                    for name, each in inside.items()
                )
            if refused:
                break
        found["refused" if refused else "no effect" if same else "missed"] += 1
    return found


def seeded(name: str, target: tvm.target.Target, count: int, seed: int) -> dict[str, Any]:
    """Outcomes by kind of fault, and the share of the allowance that the right library uses."""
    started = time.perf_counter()
    model = subject(_model(name), target)
    right, text = model.used(model.made.found)
    outcomes: dict[str, Counter[str]] = {}
    generator = np.random.default_rng([seed, *name.encode()])
    if text:
        print(f"{name} itself is refused: {text}", flush=True)
    outcomes["wrong attribute"] = attribute_outcomes(model, max(1, count // 10), generator)
    mutated = Mutated(model.made.found)
    calls = [noted(model.made.found, model.inputs(draw)) for draw in list(model.draws)[:2]]
    faults = seeded_faults(calls[0], calls[-1], generator)
    missed = []
    while sum(sum(each.values()) for each in outcomes.values()) < count:
        fault = next(faults)
        result = outcome(model, mutated, fault)
        outcomes.setdefault(fault.kind, Counter())[result] += 1
        if result == "missed":
            missed.append(f"{fault.kind} at {fault.kernel}, call {fault.call}")
    return {
        "kinds": {kind: dict(row) for kind, row in outcomes.items()},
        "missed": missed,
        "right_used": right,
        "kernels": len(calls[0]),
        "taps": len(model.reference.taps),
        "seconds": round(time.perf_counter() - started),
    }


def node_models() -> Iterator[tuple[str, ModelProto, list[Any]]]:
    """ONNX's node tests of one float input at least, an operator once, with their data."""
    seen = set()
    for case in node_tests().values():
        nodes = case.model.graph.node if case.model is not None else []
        inputs = case.model.graph.input if case.model is not None else []
        is_float = any(value.type.tensor_type.elem_type == 1 for value in inputs)
        if len(nodes) != 1 or not is_float or nodes[0].op_type in seen or not case.data_sets:
            continue
        if nodes[0].domain or nodes[0].op_type in ("RandomNormal", "Bernoulli", "Dropout"):
            continue
        seen.add(nodes[0].op_type)
        yield case.name, case.model, case.data_sets


def right_used(model: Subject, target: tvm.target.Target) -> tuple[float, str]:
    """The most of its allowance that a right model uses, with and without schedules."""
    plain = CompiledModel(build_executable(model.made.module, target), target)
    return max(model.used(model.made.found), model.used(plain))


def node_test_used(
    given: ModelProto, data: Sequence[Any], target: tvm.target.Target
) -> tuple[float, str] | None:
    """The same of a node test; None where TVM does not give the published result."""
    try:
        model = subject(given, target)
        feeds = dict(zip(model.order, map(np.asarray, data[0][0]), strict=True))
        ours = model.made.found.outputs([feeds[name] for name in model.order])
        for output, published in zip(ours, data[0][1], strict=True):
            np.testing.assert_allclose(output, published, rtol=1e-3, atol=1e-6)
    except Exception:  # noqa: BLE001 (not imported, or not right: no test of the check)
        return None
    return right_used(model, target)


def right_models(
    target: tvm.target.Target, cases: Path | None, done: dict[str, Any]
) -> Iterator[tuple[str, float, str]]:
    """Every right model that is not done, with the share used and what differs."""
    for path in sorted(cases.glob("*.onnx")) if cases else []:
        name = f"case:{path.stem}"
        if name not in done:
            report = fewtune.check(path, dimensions=_CASES.get(path.stem))
            # What is refused for another reason is no matter of this check.
            if report.ok or report.exit_code == VerificationError.exit_code:
                yield name, 0.0 if report.ok else np.inf, report.reason or ""
    count = sum(name.startswith("test_") for name in done)
    for name, given, data in node_models():
        if count >= NODE_TESTS:
            break
        if name not in done:
            found = node_test_used(given, data, target)
            if found is not None:
                count += 1
                yield name, *found
    for name in RIGHT:
        if name not in done:
            used = right_used(subject(_model(name), target), target)
            yield name, *used


class Results:
    """What is known so far, in a file that is written whole after every model."""

    def __init__(self, path: Path, again: bool) -> None:
        self._path = path
        self.content: dict[str, Any] = {"models": {}, "right": {}, "refused_right": {}}
        if path.is_file() and not again:
            self.content |= json.loads(path.read_text())

    def write(self, line: str) -> None:
        self.content["totals"] = totals(self.content)
        write_text(self._path, canonical_json(self.content))
        print(line, flush=True)


def main() -> None:
    """Seed the faults, run the right models, write what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=1170, help="in all, over all models")
    parser.add_argument("--cases", type=Path, help="folder of right models, as onnx files")
    parser.add_argument("--out", type=Path, default=Path("results/check_power.json"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="leave out nothing that is there")
    arguments = parser.parse_args()
    set_threads(THREADS)
    target = resolve_target("auto", THREADS)
    results = Results(arguments.out, arguments.again)
    results.content |= {"cpu": str(target.attrs["mcpu"]), "seed": arguments.seed}
    results.content |= {"commit": commit(), "date": time.strftime("%Y-%m-%d")}
    models, right = results.content["models"], results.content["right"]
    for name in FAULTY:
        if name not in models:
            models[name] = seeded(name, target, arguments.faults // len(FAULTY), arguments.seed)
            right[name] = models[name]["right_used"]
            results.write(f"{name}: {models[name]}")
    for name, used, text in right_models(target, arguments.cases, right):
        right[name] = used if np.isfinite(used) else 1e9
        if used > 1:
            results.content["refused_right"][name] = text
        results.write(f"right: {name} uses {used:.2g} of its allowance {text}")
    for table in tables(results.content):
        table.print()
    print(json.dumps(totals(results.content)))


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    os.environ.setdefault("TVM_NUM_THREADS", str(THREADS))
    with one_line_errors("check_power"):
        main()
