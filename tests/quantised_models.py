"""Small quantised models, by hand and by onnxruntime's quantiser, and their kernels' results."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from fewtune.model.lower import lower
from fewtune.model.reference import run_onnxruntime
from fewtune.onnx_graph import simplify as prepare
from fewtune.runtime.executable import CompiledModel, build_executable
from fewtune.task.calls import call_counts
from tests.tuned_tiny import target


def model_of(nodes, inputs, outputs, constants, opset=13) -> ModelProto:
    """A model of these nodes; inputs and outputs by name, as (element type, shape)."""
    graph = helper.make_graph(
        nodes,
        "quantised",
        [helper.make_tensor_value_info(name, *given) for name, given in inputs.items()],
        [helper.make_tensor_value_info(name, *given) for name, given in outputs.items()],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def simplified(model: ModelProto) -> ModelProto:
    """As it is imported."""
    return prepare.simplify(prepare.with_shapes(model))


def operators(model: ModelProto) -> Counter:
    """How often each operator stands in a model."""
    return Counter(node.op_type for node in model.graph.node)


def compiled(model: ModelProto) -> tuple[CompiledModel, list[str]]:
    """A model compiled without schedules, and the names of its kernels."""
    lowered = lower(simplified(model), target(), "NHWC")
    kernels = list(call_counts(lowered))
    return CompiledModel(build_executable(lowered, target()), target()), kernels


def differences(model: ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """How far each output of the kernels is from onnxruntime's."""
    kernels, _ = compiled(model)
    found = kernels.outputs([feeds[value.name] for value in model.graph.input])
    expected = run_onnxruntime(model, feeds, 1)
    for actual, wanted in zip(found, expected, strict=True):
        assert (actual.shape, actual.dtype) == (wanted.shape, wanted.dtype)
    return [
        np.abs(actual.astype(np.float64) - wanted.astype(np.float64))
        for actual, wanted in zip(found, expected, strict=True)
    ]


def assert_within_a_step(model: ModelProto, feeds: dict[str, np.ndarray]) -> float:
    """Compare bytes; gives the share that is off by one."""
    (difference,) = differences(model, feeds)
    assert difference.max() <= 1
    off = float(np.mean(difference > 0))
    # What is rounded the other way lies at a half, by the last bit of a factor.
    assert off <= 2e-3  # noqa: PLR2004
    return off


def random_bytes(random, kind, *shape):
    """Bytes of all sizes, the extremes among them."""
    limits = np.iinfo(kind)
    drawn = random.integers(limits.min, limits.max + 1, shape).astype(kind)
    extreme = random.random(shape) < 0.2  # noqa: PLR2004
    drawn[extreme] = random.choice([limits.min, limits.max], int(extreme.sum()))
    return drawn


FLOAT, UINT8, INT8, INT32 = (
    TensorProto.FLOAT,
    TensorProto.UINT8,
    TensorProto.INT8,
    TensorProto.INT32,
)
