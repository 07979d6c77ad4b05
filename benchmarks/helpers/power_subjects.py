"""Models imported with their reference, for the benchmark of the check's power."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from onnx import ModelProto

from benchmarks.helpers.power_faults import Mutated
from fewtune.model.import_options import ImportOptions
from fewtune.model.lower_checked import Lowered, lower_checked
from fewtune.onnx_graph import simplify as prepare
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.runtime.executable import CompiledModel
from fewtune.runtime.tvm import tvm
from fewtune.verify.draws import drawn_inputs
from fewtune.verify.intermediate import IntermediateValues
from fewtune.verify.make_reference import make_reference
from fewtune.verify.reference import Reference
from fewtune.verify.session import tensor_specs

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
    reference = make_reference(bound, simplified, outputs, draws, THREADS, 0)
    order = [spec.name for spec in inputs]
    made = lower_checked(bound, target, ImportOptions(), lambda compiled: compiled)
    inside = IntermediateValues(bound, simplified, reference.feeds, THREADS, 0)
    reference.taps[:] = inside.taps(made.found, order)
    return Subject(made, reference, order)
