"""What the check of outputs refuses: a thousand seeded faults, and right models beside them.

Faults are seeded into compiled libraries while they run: a hook of TVM's virtual machine stands
before and after every kernel and changes the kernel's weights (and puts them back) or its output.
So the wrong values go through the rest of the library as a wrong kernel's would. Wrong attributes
are written into the ONNX graph, which onnxruntime then runs. Libraries have default schedules. The
verdict is `fewtune.verify`'s own, as import, compile and compare use it.

A fault that changes no bit of any output on any draw is an equivalent mutant: weights that nothing
reads, a row that was zero already. One that moves no element by more than a single rounding would
(1/32 of the noise that the check measures) is below rounding. Both are counted apart and printed.

Right models are the zoo's, and node tests of ONNX whose published result TVM reproduces.

Usage: python -m benchmarks.check_power [--faults N] [--out results/check_power.json]
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import ModelProto, helper

from benchmarks.common import told
from fewtune.binding.bind import bind_shapes
from fewtune.model.lower import lower
from fewtune.onnx_graph import simplify as prepare
from fewtune.onnx_graph.graph import copy_model
from fewtune.runtime.executable import CompiledModel, build_executable
from fewtune.runtime.tvm import relax, set_threads, tvm
from fewtune.schedule.defaults.default import apply_default_schedules
from fewtune.task.extract import kernels
from fewtune.util.files import canonical_json, write_text
from fewtune.verify.comparison import compare_outputs
from fewtune.verify.draws import drawn_inputs
from fewtune.verify.reference import Reference, make_reference
from fewtune.verify.session import OnnxruntimeSession, tensor_specs
from fewtune.zoo.seeded import seeded_model, seeded_origin

FAULTY = [
    "light:squeezenet",
    "light:shufflenet",
    "zoo:mobilenet_v2",
    "zoo:mobilenet_v3",
    "zoo:efficientnet_b0",
    "zoo:bert_mini",
    "zoo:vit_tiny",
    "zoo:resnet50_v1",
]
RIGHT = [f"zoo:practice_{number}" for number in range(1, 5)]
NODE_TESTS = 52
THREADS = 2
_ROUNDING = 1 / 32
_LEAST_WEIGHT = 16
Feeds = dict[str, np.ndarray]
Run = Callable[[Feeds], list[np.ndarray]]


class Subject(NamedTuple):
    """A model compiled, with its reference."""

    simplified: ModelProto
    reference: Reference
    order: list[str]
    compiled: CompiledModel

    def run(self, feeds: Feeds) -> list[np.ndarray]:
        return self.compiled.outputs([feeds[name] for name in self.order])


def subject(model: ModelProto, target: tvm.target.Target) -> Subject:
    """Compile a model in NHWC with default schedules, in NCHW where that fails."""
    bound = bind_shapes(model, {}, {})
    simplified = prepare.simplify(bound)
    inputs, outputs = tensor_specs(bound)
    draws = drawn_inputs(simplified, inputs, 0)
    reference = make_reference(bound, simplified, outputs, draws, THREADS, 0)
    order = [spec.name for spec in inputs]
    try:
        compiled = _compiled(simplified, target, "NHWC")
        compiled.outputs([reference.feeds[name] for name in order])
    except Exception:  # noqa: BLE001 (as the import does: the conversion fails in many ways)
        compiled = _compiled(simplified, target, "NCHW")
    return Subject(simplified, reference, order, compiled)


def _compiled(model: ModelProto, target: tvm.target.Target, layout: Any) -> CompiledModel:
    lowered = lower(model, target, layout)
    scheduled = apply_default_schedules(lowered, sorted(kernels(lowered)), target)
    return CompiledModel(build_executable(scheduled, target), target)


class Fault(NamedTuple):
    """A change at one call of a kernel: of one of its arguments, before or after it runs."""

    kind: str
    call: int
    argument: int
    change: Callable[[np.ndarray], None]


class _Hook:
    """Stands before and after every kernel; seeds the fault, or notes what could be one."""

    def __init__(self) -> None:
        self.fault: Fault | None = None
        self.calls: list[tuple[str, list[np.ndarray | None]]] | None = None
        self._number = -1
        self._kept: np.ndarray | None = None

    def begin(self) -> None:
        self._number = -1

    def __call__(
        self, _function: Any, symbol: str, is_before: bool, _result: Any, *arguments: Any
    ) -> None:
        if symbol.startswith("vm.builtin."):
            return
        self._number += is_before
        if self.calls is not None and not is_before:
            arrays = [a.numpy() if hasattr(a, "numpy") else None for a in arguments]
            self.calls.append((symbol, arrays))
        fault = self.fault
        if fault is None or fault.call != self._number:
            return
        tensor = arguments[fault.argument]
        if fault.argument >= 0:
            if is_before:
                self._kept = tensor.numpy()
                changed = self._kept.copy()
                fault.change(changed)
                tensor.copyfrom(changed)
            else:
                tensor.copyfrom(self._kept)
        elif not is_before:
            changed = tensor.numpy().copy()
            fault.change(changed)
            tensor.copyfrom(changed)


class Mutated:
    """A library that runs with a fault in it."""

    def __init__(self, model: Subject, target: tvm.target.Target) -> None:
        self._subject, self._hook = model, _Hook()
        self._machine = relax.VirtualMachine(model.compiled._executable, model.compiled.device)
        self._machine.set_instrument(self._hook)
        self._device = model.compiled.device

    def run(self, feeds: Feeds) -> list[np.ndarray]:
        self._hook.begin()
        inputs = [tvm.runtime.tensor(feeds[name], self._device) for name in self._subject.order]
        outputs = self._machine["main"](*inputs)
        outputs = [outputs] if hasattr(outputs, "numpy") else list(outputs)
        return [output.numpy() for output in outputs]

    def with_fault(self, fault: Fault | None) -> Run:
        self._hook.fault = fault
        return self.run

    def faults(self, generator: np.random.Generator) -> Iterator[Fault]:
        """Faults without end, each kind as often."""
        noted = []
        for checked in self._subject.reference.checked[:2]:
            self._hook.fault, self._hook.calls = None, []
            self.run(checked.draw.feeds)
            noted.append(self._hook.calls)
        self._hook.calls = None
        weights = [
            (call, place)
            for call, ((_, first), (_, second)) in enumerate(zip(*noted, strict=True))
            for place, (a, b) in enumerate(zip(first[:-1], second[:-1], strict=True))
            if a is not None and a.dtype.kind == "f" and a.size >= _LEAST_WEIGHT
            if np.array_equal(a, b) and a.any()
        ]
        results = [
            (call, symbol, arrays[-1])
            for call, (symbol, arrays) in enumerate(noted[0])
            if arrays and arrays[-1] is not None and arrays[-1].dtype.kind == "f"
        ]
        wide = [each for each in results if each[2].ndim and max(each[2].shape) >= 8]
        convolutions = [each for each in wide if "conv" in each[1] and each[2].ndim == 4]
        pick = lambda items: items[int(generator.integers(len(items)))]  # noqa: E731
        while True:
            if weights:
                call, place = pick(weights)
                yield Fault("weight off by 1 %", call, place, _scale(np.s_[...]))
            call, _, array = pick(wide)
            axis = int(np.argmax(array.shape))
            pair = generator.choice(array.shape[axis], 2, replace=False)
            yield Fault("two channels swapped", call, -1, _swap(axis, pair))
            if convolutions:
                call, _, array = pick(convolutions)
                last = bool(generator.integers(2))
                yield Fault("border row wrong", call, -1, _border(_rows_axis(array), last))
            call, _, array = pick(wide)
            axis = int(np.argmax(array.shape))
            start = 4 * int(generator.integers(max(1, array.shape[axis] // 4)))
            yield Fault("tile left out", call, -1, _zero(axis, slice(start, start + 4)))
            call, _, array = pick(wide)
            axis = int(np.argmax(array.shape))
            part = array.shape[axis] // 4
            start = part * int(generator.integers(4))
            index = (slice(None),) * axis + (slice(start, start + part),)
            yield Fault("slice scaled", call, -1, _scale(index))


def _rows_axis(array: np.ndarray) -> int:
    """The axis of rows, whichever layout: the first of two neighbours of the same size."""
    return 2 if array.shape[2] == array.shape[3] else 1


def _scale(index: Any) -> Callable[[np.ndarray], None]:
    def change(array: np.ndarray) -> None:
        array[index] *= array.dtype.type(1.01)

    return change


def _swap(axis: int, pair: np.ndarray) -> Callable[[np.ndarray], None]:
    def change(array: np.ndarray) -> None:
        view = np.moveaxis(array, axis, 0)
        view[pair] = view[pair[::-1]]

    return change


def _border(axis: int, last: bool) -> Callable[[np.ndarray], None]:
    def change(array: np.ndarray) -> None:
        view = np.moveaxis(array, axis, 0)
        if len(view) > 1:
            view[-1 if last else 0] = view[-2 if last else 1]
        else:
            view[0] *= array.dtype.type(0.5)

    return change


def _zero(axis: int, rows: slice) -> Callable[[np.ndarray], None]:
    def change(array: np.ndarray) -> None:
        np.moveaxis(array, axis, 0)[rows] = 0

    return change


def wrong_attributes(model: ModelProto) -> Iterator[tuple[str, ModelProto]]:
    """The model with one attribute of one operator wrong, shapes as they were."""
    for place, node in enumerate(model.graph.node):
        for name, value in _wrong_values(node):
            changed = copy_model(model)
            twin = changed.graph.node[place]
            kept = [a for a in twin.attribute if a.name != name]
            del twin.attribute[:]
            twin.attribute.extend([*kept, helper.make_attribute(name, value)])
            yield f"{node.op_type} {node.name!r} {name}", changed


def _wrong_values(node: onnx.NodeProto) -> Iterator[tuple[str, Any]]:
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    pads = list(given.get("pads", []))
    if node.op_type in ("Conv", "MaxPool", "AveragePool") and len(pads) == 4 and pads[0]:
        yield "pads", [pads[0] - 1, pads[1], pads[2] + 1, pads[3]]
        yield "pads", [pads[0], pads[1] + 1, pads[2], pads[3] - 1] if pads[3] else pads
    if node.op_type == "AveragePool" and any(pads):
        yield "count_include_pad", 1 - given.get("count_include_pad", 0)
    if node.op_type == "Gemm":
        yield "alpha", 1.01 * given.get("alpha", 1.0)
    if node.op_type == "Softmax":
        yield "axis", 0 if given.get("axis", -1) != 0 else -1
    if node.op_type == "LeakyRelu":
        yield "alpha", 1.1 * given.get("alpha", 0.01)
    if node.op_type == "HardSigmoid":
        yield "alpha", 1.1 * given.get("alpha", 0.2)


def outcome(reference: Reference, run: Run, right: Run) -> str:
    """``refused``, ``missed``, ``equivalent`` or ``below rounding``."""
    pairs = []
    for checked in reference.checked:
        actual = run(checked.draw.feeds)
        if not compare_outputs(actual, checked.outputs).allowances <= 1:
            return "refused"
        pairs.append((actual, checked))
    same = below = True
    for actual, checked in pairs:
        for ours, plain, expected in zip(
            actual, right(checked.draw.feeds), checked.outputs, strict=True
        ):
            same &= bool(np.array_equal(ours, plain, equal_nan=ours.dtype.kind == "f"))
            moved = np.abs(ours.astype(np.float64) - plain.astype(np.float64))
            below &= bool((moved <= _ROUNDING * expected.noise).all())
    return "equivalent" if same else "below rounding" if below else "missed"


def seeded_faults(
    name: str, target: tvm.target.Target, count: int, seed: int
) -> tuple[Counter[tuple[str, str]], float]:
    """Outcomes by kind of fault, and the share of the allowance that the right library uses."""
    model = subject(seeded_model(seeded_origin(name), 0), target)
    right = model.reference.check(model.run).allowances
    outcomes: Counter[tuple[str, str]] = Counter()
    generator = np.random.default_rng([seed, len(name)])
    changed = list(wrong_attributes(model.simplified)) if count else []
    chosen = generator.permutation(len(changed))[: max(1, count // 10)]
    plain = OnnxruntimeSession(model.simplified, THREADS) if len(chosen) else None
    for place in chosen:
        run = OnnxruntimeSession(changed[place][1], THREADS).run
        outcomes["wrong attribute", outcome(model.reference, run, plain.run)] += 1
    mutated = Mutated(model, target)
    seeded = mutated.faults(generator)
    while sum(outcomes.values()) < count:
        fault = next(seeded)
        result = outcome(model.reference, mutated.with_fault(fault), model.run)
        outcomes[fault.kind, result] += 1
    return outcomes, right


def node_models() -> Iterator[tuple[str, ModelProto, list[Any]]]:
    """ONNX's node tests of one float input at least, an operator once, with their data."""
    from onnx.backend.test.case.node import collect_testcases

    seen = set()
    for case in collect_testcases(None):
        nodes = case.model.graph.node if case.model is not None else []
        inputs = case.model.graph.input if case.model is not None else []
        is_float = any(value.type.tensor_type.elem_type == 1 for value in inputs)
        if len(nodes) != 1 or not is_float or nodes[0].op_type in seen or not case.data_sets:
            continue
        if nodes[0].domain or nodes[0].op_type in ("RandomNormal", "Bernoulli", "Dropout"):
            continue
        seen.add(nodes[0].op_type)
        yield case.name, case.model, case.data_sets


def right_models(target: tvm.target.Target) -> dict[str, float]:
    """Share of the allowance used, by model that is right."""
    used = {}
    for name in RIGHT:
        model = subject(seeded_model(seeded_origin(name), 0), target)
        used[name] = model.reference.check(model.run).allowances
        print(f"right: {name} uses {used[name]:.2g} of its allowance", flush=True)
    for name, given, data in node_models():
        if len(used) >= len(RIGHT) + NODE_TESTS:
            break
        try:
            model = subject(given, target)
            feeds = dict(zip(model.order, map(np.asarray, data[0][0]), strict=True))
            for ours, published in zip(model.run(feeds), data[0][1], strict=True):
                np.testing.assert_allclose(ours, published, rtol=1e-3, atol=1e-6)
        except Exception:  # noqa: BLE001, S112 (not imported, or not right: no test of the check)
            continue
        used[name] = model.reference.check(model.run).allowances
        if used[name] > 1:
            print(f"right: {name} is refused: {model.reference.check(model.run).text}", flush=True)
    return used


def table(results: dict[str, Any]) -> str:
    """The results in markdown."""
    lines = [
        "# What the check of outputs refuses",
        "",
        f"{results['faults']} seeded faults in {len(results['models'])} models, in "
        f"{results['seconds']} s. {results['refused_pct']} % of those that change an output by "
        "more than one rounding are refused. Equivalent faults change no bit on any draw; those "
        "below rounding move no element by more than 1/32 of the measured noise. "
        f"{results['right']} right models use at most {results['right_most_used']:.2g} of their "
        f"allowance; {results['right_refused']} are refused.",
        "",
        "| fault | seeded | refused | missed | equivalent | below rounding |",
        "|---|---|---|---|---|---|",
    ]
    for kind, row in results["kinds"].items():
        lines.append(
            f"| {kind} | {sum(row.values())} | {row.get('refused', 0)} | {row.get('missed', 0)} "
            f"| {row.get('equivalent', 0)} | {row.get('below rounding', 0)} |"
        )
    lines += ["", "| model | seeded | refused | missed | allowance used when right |"]
    lines += ["|---|---|---|---|---|"]
    for name, row in results["models"].items():
        lines.append(
            f"| {name} | {row['seeded']} | {row['refused']} | {row['missed']} | "
            f"{row['right_used']:.2g} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Seed the faults, run the right models, write both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=1040, help="in all, over eight models")
    parser.add_argument("--out", type=Path, default=Path("results/check_power.json"))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    started = time.perf_counter()
    set_threads(THREADS)
    cpu = tvm.get_global_func("target.llvm_get_system_cpu")()
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": THREADS})
    kinds: dict[str, Counter[str]] = {}
    models, used = {}, {}
    for name in FAULTY:
        outcomes, used[name] = seeded_faults(
            name, target, arguments.faults // len(FAULTY), arguments.seed
        )
        every: Counter[str] = Counter()
        for (kind, result), count in outcomes.items():
            kinds.setdefault(kind, Counter())[result] += count
            every[result] += count
        models[name] = {
            "seeded": sum(every.values()),
            "refused": every["refused"],
            "missed": every["missed"],
            "right_used": used[name],
        }
        print(f"{name}: {dict(outcomes)}", flush=True)
    used |= right_models(target)
    totals = sum(kinds.values(), Counter())
    judged = totals["refused"] + totals["missed"]
    results = {
        "faults": sum(totals.values()),
        "refused": totals["refused"],
        "missed": totals["missed"],
        "equivalent": totals["equivalent"],
        "below_rounding": totals["below rounding"],
        "refused_pct": round(100 * totals["refused"] / judged, 2) if judged else None,
        "right": len(used),
        "right_refused": sum(each > 1 for each in used.values()),
        "right_most_used": max(used.values()),
        "seconds": round(time.perf_counter() - started),
        "cpu": cpu,
        "seed": arguments.seed,
        "kinds": {kind: dict(row) for kind, row in kinds.items()},
        "models": models,
        "right_used": used,
    }
    write_text(arguments.out, canonical_json(results))
    write_text(arguments.out.with_suffix(".md"), table(results))
    brief = {key: value for key, value in results.items() if not isinstance(value, dict)}
    print(json.dumps(brief))


if __name__ == "__main__":
    with told("check_power"):
        main()
