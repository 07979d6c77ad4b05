"""Models imported with their references, and libraries whose kernels are changed."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from onnx import ModelProto

from fewtune.model.lower import lower_checked
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.onnx_graph.simplify import simplify
from fewtune.options import ImportOptions
from fewtune.runtime.executable import CompiledModel, Observer
from fewtune.verify.draws import drawn_inputs
from fewtune.verify.intermediate import IntermediateValues
from fewtune.verify.make_reference import make_reference
from fewtune.verify.reference import Reference
from fewtune.verify.values import tensor_specs
from tests.tuned_tiny import target

Change = Callable[[str, Sequence[Any]], None]


class Imported(NamedTuple):
    """A library of a model of one input ``x``, its reference, a note, and what was left out."""

    compiled: CompiledModel
    reference: Reference
    note: str
    left_out: dict[str, str]


def imported(model: ModelProto) -> Imported:
    """The library by the first plan whose outputs are right, and the reference."""
    bound = bind_shapes(model, {}, {})
    simplified = simplify(bound)
    inputs, outputs = tensor_specs(bound)
    draws = drawn_inputs(simplified, inputs, 0)
    reference = make_reference(bound, simplified, outputs, draws, 1, 0)
    inside = IntermediateValues(bound, simplified, reference.feeds, 1, 0)

    def check(compiled: CompiledModel) -> CompiledModel:
        if not reference.taps:
            reference.taps[:] = inside.taps(compiled, ["x"])
        found = reference.check_library(compiled, ["x"])
        assert found.allowances <= 1, found.text
        return compiled

    found = lower_checked(bound, target(), ImportOptions(), check)
    return Imported(found.found, reference, inside.note, found.left_out)


class Changed:
    """A library whose kernels get other arguments, or whose outputs are changed after a call."""

    def __init__(
        self, compiled: CompiledModel, before: Change | None = None, after: Change | None = None
    ) -> None:
        self._compiled, self._before, self._after = compiled, before, after

    def observed(self, inputs: list[np.ndarray], observe: Observer) -> list[np.ndarray]:
        """Run once; arguments are changed before each call and restored after it."""
        kept: list[tuple[Any, np.ndarray]] = []

        def before(kernel: str, _call: int, arguments: Sequence[Any]) -> None:
            kept[:] = [(a, a.numpy().copy()) for a in arguments[:-1] if hasattr(a, "numpy")]
            if self._before is not None:
                self._before(kernel, arguments)

        def after(kernel: str, call: int, arguments: Sequence[Any]) -> None:
            for tensor, values in kept:
                tensor.copyfrom(values)
            if self._after is not None:
                self._after(kernel, arguments)
            observe(kernel, call, arguments)

        return self._compiled.observed(inputs, after, before)

    def outputs(self, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """Run once, with the change."""
        return self.observed(inputs, lambda kernel, call, arguments: None)
