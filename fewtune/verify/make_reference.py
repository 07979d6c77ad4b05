"""Makes the reference of a check: onnxruntime's outputs and their noise."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from onnx import ModelProto

from fewtune.artifacts import TensorSpec
from fewtune.errors import InputError
from fewtune.onnx_graph.external_data import LightModel, light
from fewtune.onnx_graph.float16 import has_float16
from fewtune.onnx_graph.session import OnnxruntimeSession
from fewtune.onnx_graph.simplify import with_shapes
from fewtune.onnx_graph.unsigned_weights import with_unsigned_weights
from fewtune.util.asked import asked
from fewtune.verify.comparison import Expected
from fewtune.verify.draws import GIVEN, LARGER, LIMITS
from fewtune.verify.noise import RUNS, NoiseMeter, is_quantised
from fewtune.verify.reference import Checked, Draw, Reference

# Least share of an output that is not NaN, in draws that are used for lack of better ones.
_LEAST_NUMBERS = 0.25
# Runs that measure the noise of draws that refuse nothing.
_RARE_RUNS = 2


def make_reference(  # noqa: PLR0913 (all that a reference is made of)
    model: ModelProto | LightModel,
    simplified: ModelProto | LightModel,
    outputs: Sequence[TensorSpec],
    draws: Sequence[Draw],
    threads: int,
    seed: int,
    rare: Sequence[Draw] = (),
) -> Reference:
    """Run onnxruntime on every draw, and measure the noise of its outputs.

    ``rare`` are further draws (`fewtune.verify.draws.rare_inputs`); one that onnxruntime cannot
    run, or does not run twice alike, is left out. ``simplified`` is the simplified model, with
    which only noise is measured. Raises `InputError` if onnxruntime refuses the model, or returns
    no usable outputs for any draw.
    """
    maker = _Maker(light(model), light(simplified), threads, seed)
    notes: list[str] = []
    unusable: list[str] = []
    # Draws with some NaN, such as a row that is masked as a whole: used if there are no others.
    partly: list[tuple[int, Draw, list[np.ndarray]]] = []
    for number, draw in enumerate(draws):
        is_given = draw.name == GIVEN
        try:
            values = maker.outputs(draw)
        except InputError as fault:
            reason = str(fault).removeprefix("onnxruntime cannot run the model: ")
            if is_given:
                raise InputError(f"onnxruntime cannot run the {GIVEN}: {reason}") from None
            unusable.append(f"onnxruntime itself cannot run {draw.name}: {reason}")
            continue
        broken = _not_numbers(values, outputs)
        if broken:
            text = f"onnxruntime itself gives {broken} for {draw.name}"
            (notes if is_given else unusable).append(text)
        if is_given or not broken:
            maker.add(number, draw, values)
        elif _has_numbers(values):
            partly.append((number, draw, values))
    for each in partly if not maker.checked else []:
        maker.add(*each)
    if not maker.checked:
        raise InputError(
            f"{'; '.join(unusable)}: its outputs cannot be checked; give inputs that it can "
            f"compute, with {asked('inputs', value='FILE.npz')}"
        )
    if maker.contradicted:
        names = ", ".join(map(repr, sorted(maker.contradicted)))
        notes.append(
            f"onnxruntime's optimiser changes what the model computes (output {names}): it is "
            "compared with what onnxruntime computes without"
        )
    for number, draw in enumerate(rare, len(draws)):
        maker.add_rare(number, draw)
    return Reference(maker.checked, [*notes, *unusable], rare=maker.rare)


class _Maker:
    """Runs onnxruntime, and measures noise once there is a usable draw."""

    def __init__(self, model: LightModel, simplified: LightModel, threads: int, seed: int) -> None:
        self._models, self._threads, self._seed = (model, simplified), threads, seed
        # Made here once, both sessions share them.
        exact = with_unsigned_weights(model)
        self._plain = OnnxruntimeSession(exact, threads)
        self._unoptimised = OnnxruntimeSession(exact, threads, optimised=False)
        self.checked: list[Checked] = []
        self.rare: list[Checked] = []
        self.contradicted: set[str] = set()

    def outputs(self, draw: Draw) -> list[np.ndarray]:
        """The model's outputs; an `InputError` if onnxruntime fails."""
        return [np.asarray(value) for value in self._plain.run(draw.feeds)]

    def add(self, number: int, draw: Draw, values: Sequence[np.ndarray]) -> None:
        """Add a draw with its outputs and their noise."""
        other, expected = self._measured(number, draw, values)
        if self._meter.contradicted:
            # onnxruntime 1.31 does so when it fuses a pad with a pooling, or weights of two bits.
            self.contradicted.update(self._meter.contradicted)
            expected = self._meter.expected(draw.feeds, other, self._seed + number)
        self.checked.append(Checked(draw, expected))

    def add_rare(self, number: int, draw: Draw) -> None:
        """Add a draw of inputs that models seldom get, if onnxruntime is sure of its outputs."""
        is_checked = draw.name in (LIMITS, LARGER)
        try:
            values = self.outputs(draw)
            if not _has_numbers(values):
                return
            _, expected = self._measured(number, draw, values, RUNS if is_checked else _RARE_RUNS)
        except InputError:
            return
        if not self._meter.contradicted:
            (self.checked if is_checked else self.rare).append(Checked(draw, expected))

    def _measured(
        self, number: int, draw: Draw, values: Sequence[np.ndarray], runs: int = RUNS
    ) -> tuple[list[np.ndarray], list[Expected]]:
        """Outputs without optimisation, and the given ones with their noise."""
        other = [np.asarray(each) for each in self._unoptimised.run(draw.feeds)]
        seed = self._seed + number
        return other, self._meter.expected(draw.feeds, values, seed, other, runs)

    @cached_property
    def _meter(self) -> NoiseMeter:
        """A noise meter of the simplified model.

        One of the model itself is used for quantized and float16 models: simplification rewrites
        the operators on which their noise depends. The other of the two is used if onnxruntime
        refuses the first.
        """
        model, simplified = self._models
        models = [simplified, model]
        if is_quantised(model.model) or has_float16(model.model):
            models = [LightModel(with_shapes(model.model), model.arrays), simplified]
        try:
            return NoiseMeter(models[0], self._threads)
        except InputError:
            return NoiseMeter(models[1], self._threads)


def _not_numbers(values: Sequence[np.ndarray], outputs: Sequence[TensorSpec]) -> str:
    """Message on the first output with NaN; infinities are allowed, such as in masks."""
    for value, spec in zip(values, outputs, strict=True):
        if value.dtype.kind == "f" and np.isnan(value).any():
            count = int(np.count_nonzero(np.isnan(value)))
            return f"NaN in {count} of {value.size} elements of output {spec.name!r}"
    return ""


def _has_numbers(values: Sequence[np.ndarray]) -> bool:
    """Whether enough elements of every output are numbers."""
    return all(
        value.dtype.kind != "f"
        or np.count_nonzero(np.isnan(value)) <= (1 - _LEAST_NUMBERS) * value.size
        for value in values
    )
