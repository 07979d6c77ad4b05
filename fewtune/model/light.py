"""Architectures that the onnx package ships, with seeded random weights.

The package's backend tests include real architectures as files of a few kilobytes
(``onnx/backend/test/data/light``), whose weights are all one constant. With such weights all
outputs are equal, so a comparison of outputs would find no fault. Here each weight is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from fewtune.errors import InputError
from fewtune.onnx_graph.graph import remove_inputs, set_nodes

# Ranges for which the expected square of scale / sqrt(variance) is just below one.
SCALE_RANGE = (0.6, 1.3)
VARIANCE_RANGE = (0.75, 1.25)
SHIFT_SCALE = 0.05

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]

_DIRECTORY = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
_PREFIX = "light_"

# Operators that only reshape a weight before the operator that uses it.
_RESHAPING = frozenset({"Unsqueeze", "Reshape"})
_LAYERS = ("Conv", "Gemm")
_LINEAR = _RESHAPING | {"BatchNormalization", "Mul", "Add", "Transpose", "Dropout"}

# The last normalization of a residual branch is scaled down. Statistics are drawn and not measured,
# so nothing else keeps the sum over many blocks from growing.
_RESIDUAL_SCALE = 0.4


def normal(scale: float) -> Draw:
    """Draw from a normal distribution about zero."""
    return lambda generator, shape: (
        generator.standard_normal(shape, dtype=np.float32) * np.float32(scale)
    )


def uniform(low: float, high: float) -> Draw:
    """Draw from a uniform distribution over an interval."""
    return lambda generator, shape: generator.uniform(low, high, shape).astype(np.float32)


def light_names() -> list[str]:
    """Names of the architectures of `light_model`, such as ``squeezenet``."""
    return sorted(path.stem.removeprefix(_PREFIX) for path in _DIRECTORY.glob(f"{_PREFIX}*.onnx"))


def light_model(name: str, seed: int) -> ModelProto:
    """Make a model with random weights.

    Parameters
    ----------
    name : str
        One of `light_names`.
    seed : int
        The same seed gives a byte-identical model.

    Returns
    -------
    model : ModelProto
        float32, one input of 1x3x224x224, weights as initializers only (IR version 8).

    Raises
    ------
    InputError
        If there is no such architecture, or the seed is negative.

    Notes
    -----
    Convolutions and dense layers are drawn at He's scale (He et al., 2015, "Delving Deep into
    Rectifiers"), so that activations keep their size from layer to layer.
    """
    if seed < 0:
        raise InputError(f"seed {seed} is negative: give 0 or more")
    if name not in light_names():
        raise InputError(
            f"no light model is called {name!r}; the onnx package has {', '.join(light_names())}"
        )
    model = onnx.load(_DIRECTORY / f"{_PREFIX}{name}.onnx")
    shapes = _weight_shapes(model)
    # The first node that reads each value, and the number of that input.
    consumers = {
        name: (node, position)
        for node in reversed(model.graph.node)
        for position, name in enumerate(node.input)
    }
    producers = {output: node for node in model.graph.node for output in node.output}
    generator = np.random.default_rng(seed)
    weights = {
        each: _draw(generator, each, shape, consumers, producers)
        for each, shape in shapes.items()
        if each in consumers
    }
    _replace_weights(model, weights)
    model.ir_version = 8
    return model


def _weight_shapes(model: ModelProto) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all float constants, in graph order."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    shapes = {n: tuple(t.dims) for n, t in tensors.items() if t.data_type == TensorProto.FLOAT}
    for node in model.graph.node:
        if node.op_type == "ConstantOfShape":
            shapes[node.output[0]] = tuple(numpy_helper.to_array(tensors[node.input[0]]).tolist())
    return shapes


def _draw(
    generator: np.random.Generator,
    name: str,
    shape: tuple[int, ...],
    consumers: dict[str, tuple[NodeProto, int]],
    producers: dict[str, NodeProto],
) -> np.ndarray:
    """Draw one weight for the operator that uses it."""
    node, position = consumers[name]
    while node.op_type in _RESHAPING:
        node, position = consumers[node.output[0]]
    if node.op_type in _LAYERS and position == 1:
        # Every Gemm reads its weights transposed.
        inputs = math.prod(shape[1:]) if node.op_type == "Conv" else shape[-1]
        return normal(_he_scale(inputs, node, producers))(generator, shape)
    if node.op_type == "BatchNormalization" and position == 4:
        return uniform(*VARIANCE_RANGE)(generator, shape)
    if node.op_type == "BatchNormalization" and position == 1:
        values = uniform(*SCALE_RANGE)(generator, shape)
        ends_branch = consumers[node.output[0]][0].op_type == "Sum"
        return values * np.float32(_RESIDUAL_SCALE if ends_branch else 1)
    if node.op_type == "Mul":
        return uniform(*SCALE_RANGE)(generator, shape)
    return normal(SHIFT_SCALE)(generator, shape)


def _he_scale(inputs: int, node: NodeProto, producers: dict[str, NodeProto]) -> float:
    """Standard deviation that keeps the size of activations through ``node``.

    He's factor of two compensates for the half that a ReLU sets to zero. It is left out if there
    are only linear operators between this layer and the one before.
    """
    before = producers.get(node.input[0])
    while before is not None and before.op_type in _LINEAR:
        before = producers.get(before.input[0])
    rectified = before is not None and before.op_type not in _LAYERS
    return math.sqrt((2 if rectified else 1) / inputs)


def _replace_weights(model: ModelProto, weights: dict[str, np.ndarray]) -> None:
    """Replace the constants by ``weights``, as initializers that are not graph inputs."""
    graph = model.graph
    remove_inputs(graph, {tensor.name for tensor in graph.initializer})
    set_nodes(model, [node for node in graph.node if node.op_type != "ConstantOfShape"])
    used = {name for node in graph.node for name in node.input}
    kept = [t for t in graph.initializer if t.name in used - weights.keys()]
    del graph.initializer[:]
    drawn = [numpy_helper.from_array(values, name) for name, values in weights.items()]
    graph.initializer.extend([*kept, *drawn])
