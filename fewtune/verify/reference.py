"""What a model's outputs are compared with: onnxruntime's, computed once and kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, numpy_helper

from fewtune.artifacts import TensorSpec
from fewtune.errors import InputError
from fewtune.onnx_graph.external_data import LightModel, light
from fewtune.onnx_graph.graph import attach_weights, detach_weights
from fewtune.onnx_graph.halves import has_halves
from fewtune.onnx_graph.simplify import with_shapes
from fewtune.verify.comparison import Difference, Expected, compare_outputs
from fewtune.verify.draws import GIVEN, Draw
from fewtune.verify.noise import NoiseMeter
from fewtune.verify.quantised import is_quantised
from fewtune.verify.session import OnnxruntimeSession
from fewtune.verify.taps import Observable, Runs, Site, Tap, check_taps

FILE = "reference.npz"
# Part of an output that has to be numbers where every draw gives NaN in places.
_LEAST_NUMBERS = 0.25
_EXACT_TAIL = frozenset(
    {"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "DequantizeLinear"}
)


@dataclass(frozen=True)
class Checked:
    """A draw of inputs and what onnxruntime computes of it."""

    draw: Draw
    outputs: list[Expected]


@dataclass(frozen=True)
class Reference:
    """Draws of inputs with onnxruntime's outputs and their noise.

    Attributes
    ----------
    checked : list of Checked
        The inputs that the user gave come first, if any.
    notes : list of str
        What onnxruntime itself did with other draws.
    taps : list of Tap
        Values inside, of the first draw.
    """

    checked: list[Checked]
    notes: list[str]
    taps: list[Tap] = field(default_factory=list)

    @property
    def feeds(self) -> dict[str, np.ndarray]:
        """Inputs to measure with."""
        return self.checked[0].draw.feeds

    def check(
        self, run: Callable[[dict[str, np.ndarray]], Sequence[np.ndarray]], factor: float = 1.0
    ) -> Difference:
        """Run something on every draw and compare its outputs; the worst of them.

        Parameters
        ----------
        run : callable
            Takes inputs by name and gives outputs in the order of the model's.
        factor : float
            Multiplies every allowance.
        """
        worst = Difference()
        for each in self.checked:
            found = compare_outputs(run(each.draw.feeds), each.outputs, factor)
            if found.text:
                found = Difference(
                    found.allowances,
                    found.max_error,
                    found.max_relative_error,
                    f"{found.text} (on {each.draw.name})",
                )
            worst = worst.worse(found)
        return worst

    def check_library(
        self, compiled: Runs, order: Sequence[str], factor: float = 1.0
    ) -> Difference:
        """Compare a library's outputs on every draw, and what its kernels write on the first.

        Parameters
        ----------
        compiled : Runs
            What its kernels write is compared where it is `Observable`.
        order : sequence of str
            Of its inputs.
        factor : float
            Multiplies every allowance.
        """
        found = self.check(lambda feeds: compiled.outputs([feeds[n] for n in order]), factor)
        if not isinstance(compiled, Observable):
            return found
        inside = check_taps(compiled, [self.feeds[name] for name in order], self.taps, factor)
        if found.text and inside.text:
            return replace(found, text=f"{found.text}; the first value inside: {inside.text}")
        return found.worse(inside)

    def worst_draw(self, run: Callable[[dict[str, np.ndarray]], Sequence[np.ndarray]]) -> Draw:
        """The draw on which something is furthest out."""
        away = [compare_outputs(run(c.draw.feeds), c.outputs).allowances for c in self.checked]
        return self.checked[int(np.argmax(away))].draw

    def write(self, directory: Path) -> None:
        """Write all into ``directory``, the same bytes for the same content."""
        arrays: dict[str, Any] = {}
        index: dict[str, Any] = {"notes": self.notes, "draws": []}
        for number, each in enumerate(self.checked):
            inputs, outputs = list(each.draw.feeds), [out.name for out in each.outputs]
            index["draws"].append({"name": each.draw.name, "inputs": inputs, "outputs": outputs})
            for place, name in enumerate(inputs):
                arrays[f"{number}.input.{place}"] = each.draw.feeds[name]
            for place, out in enumerate(each.outputs):
                arrays[f"{number}.output.{place}"] = out.values
                arrays[f"{number}.noise.{place}"] = out.noise
        inside = {tap.expected.name: tap.expected for tap in self.taps}
        numbers = {name: number for number, name in enumerate(inside)}
        for name, value in inside.items():
            arrays[f"inside.{numbers[name]}.output"] = value.values
            arrays[f"inside.{numbers[name]}.noise"] = value.noise
        index["inside"] = list(inside)
        index["taps"] = [
            [*tap.site, numbers[tap.expected.name], tap.restored, tap.stepped] for tap in self.taps
        ]
        arrays["index"] = np.frombuffer(json.dumps(index).encode(), np.uint8)
        np.savez(directory / FILE, **arrays)

    @classmethod
    def read(cls, directory: Path) -> Reference:
        """Read what `write` wrote.

        Raises
        ------
        InputError
            If it is missing or damaged.
        """
        path = directory / FILE
        try:
            with np.load(path, allow_pickle=False) as content:
                arrays = {name: content[name] for name in content.files}
            index = json.loads(arrays["index"].tobytes())
            checked = []
            for number, each in enumerate(index["draws"]):
                feeds = {
                    name: arrays[f"{number}.input.{place}"]
                    for place, name in enumerate(each["inputs"])
                }
                outputs = [
                    Expected(name, *(arrays[f"{number}.{kind}.{place}"] for kind in _KINDS))
                    for place, name in enumerate(each["outputs"])
                ]
                checked.append(Checked(Draw(each["name"], feeds), outputs))
            inside = [
                Expected(name, *(arrays[f"inside.{number}.{kind}"] for kind in _KINDS))
                for number, name in enumerate(index["inside"])
            ]
            taps = [
                Tap(Site(kernel, call, tuple(shape), tuple(axes)), inside[number], *judged)
                for kernel, call, shape, axes, number, *judged in index["taps"]
            ]
            return cls(checked, index["notes"], taps)
        except Exception as error:  # noqa: BLE001 (zipfile, zlib and numpy raise many classes)
            raise InputError(
                f"{path} cannot be read ({error}): import the model again, with "
                "`fewtune run --stage import_model` or `dvc repro`"
            ) from None


_KINDS = ("output", "noise")


def make_reference(
    model: ModelProto | LightModel,
    simplified: ModelProto | LightModel,
    outputs: Sequence[TensorSpec],
    draws: Sequence[Draw],
    threads: int,
    seed: int,
) -> Reference:
    """Run onnxruntime on every draw, and measure how far rounding moves its outputs.

    Parameters
    ----------
    model : ModelProto or LightModel
        The reference.
    simplified : ModelProto or LightModel
        Computes the same in fewer nodes; only noise is measured with it.
    outputs : sequence of TensorSpec
    draws : sequence of Draw
    threads : int
    seed : int

    Raises
    ------
    InputError
        If onnxruntime refuses the model, or gives no number for any draw.
    """
    model, simplified = light(model), light(simplified)
    plain = OnnxruntimeSession(model, threads)
    unoptimised = OnnxruntimeSession(model, threads, optimised=False)
    meter: NoiseMeter | None = None

    def add(number: int, draw: Draw, values: Sequence[np.ndarray]) -> None:
        nonlocal meter
        meter = meter or _meter(model, simplified, threads)
        others = [unoptimised.run(draw.feeds)]
        checked.append(Checked(draw, meter.expected(draw.feeds, values, others, seed + number)))

    checked: list[Checked] = []
    notes: list[str] = []
    unusable: list[str] = []
    # Draws with NaN in places, as a row that is masked as a whole has: better than none.
    partly: list[tuple[int, Draw, list[np.ndarray]]] = []
    for number, draw in enumerate(draws):
        try:
            values = [np.asarray(value) for value in plain.run(draw.feeds)]
        except Exception as fault:  # noqa: BLE001 (onnxruntime raises a class a status)
            reason = " ".join(str(fault).split()).removeprefix("onnxruntime cannot run the model: ")
            if draw.name == GIVEN:
                raise InputError(f"onnxruntime cannot run the {GIVEN}: {reason}") from None
            if any(told.endswith(reason) for told in unusable):
                reason = "as before"
            unusable.append(f"onnxruntime itself cannot run {draw.name}: {reason}")
            continue
        broken = _not_numbers(values, outputs)
        if broken:
            notes.append(f"onnxruntime itself gives {broken} for {draw.name}")
            if draw.name != GIVEN:
                unusable.append(notes.pop())
                if _has_numbers(values):
                    partly.append((number, draw, values))
                continue
        add(number, draw, values)
    for each in partly if not checked else []:
        add(*each)
    if not checked:
        raise InputError(
            f"{'; '.join(unusable)}: its outputs cannot be checked; give inputs that it can "
            "compute, with --inputs FILE.npz"
        )
    return Reference(checked, [*notes, *unusable])


def _meter(model: LightModel, simplified: LightModel, threads: int) -> NoiseMeter:
    """A meter on the simplified model, on the model itself where onnxruntime refuses that.

    Also where it is quantised, or in half precision: simplified, nothing is left that says where a
    value may take the other step, or is rounded to halves.
    """
    steps = _steps(model.model) | _steps(simplified.model)
    models = [simplified, model]
    if is_quantised(model.model) or has_halves(model.model):
        light_model, weights = detach_weights(model.model)
        shaped = attach_weights(with_shapes(light_model), weights)
        models = [LightModel(shaped, model.arrays), simplified]
    try:
        return NoiseMeter(models[0], threads, steps)
    except InputError:
        return NoiseMeter(models[1], threads, steps)


def _not_numbers(values: Sequence[np.ndarray], outputs: Sequence[TensorSpec]) -> str:
    """What an output holds that is no number, in words; infinities may be meant, as in masks."""
    for value, spec in zip(values, outputs, strict=True):
        if value.dtype.kind == "f" and np.isnan(value).any():
            count = int(np.count_nonzero(np.isnan(value)))
            return f"NaN in {count} of {value.size} elements of output {spec.name!r}"
    return ""


def _has_numbers(values: Sequence[np.ndarray]) -> bool:
    """Whether enough of every output is a number for a comparison to say something."""
    return all(
        value.dtype.kind != "f"
        or np.count_nonzero(np.isnan(value)) <= (1 - _LEAST_NUMBERS) * value.size
        for value in values
    )


def _steps(model: ModelProto) -> dict[str, float]:
    """The quantisation step of outputs that a DequantizeLinear ends, of one scale."""
    producers = {output: node for node in model.graph.node for output in node.output}
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    steps = {}
    for value in model.graph.output:
        node = producers.get(value.name)
        while node is not None and node.op_type in _EXACT_TAIL:
            if node.op_type == "DequantizeLinear":
                scale = constants.get(node.input[1])
                if scale is not None:
                    steps[value.name] = float(np.max(numpy_helper.to_array(scale)))
                break
            node = producers.get(node.input[0])
    return steps
