"""Jittered models, in which all values move a little: they measure rounding noise.

Between any two operators, values are multiplied by random factors close to one. The movement of an
output shows how far rounding may move it, including cancellation, quantization steps, and depth.
The idea is Monte Carlo arithmetic (Parker, "Monte Carlo arithmetic", UCLA CSD-970002, 1997).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from fewtune.onnx_graph.graph import (
    attach_weights,
    detach_weights,
    element_count,
    graph_inputs,
    has_nested_graphs,
    set_nodes,
)
from fewtune.verify.indices import INTEGERS
from fewtune.verify.values import known_values

# Half the width of random factors by element type: 32 units in the last place, 6 for float16. In
# float32 this leaves room for other orders of summation and for Winograd's transforms. Noise
# accumulates over depth. In an EfficientNet B0 with random weights, faults of 1 % in 18 of 24
# weight tensors were not found at 256 units, and in 8 of 11 at 32.
AMPLITUDE: dict[int, float] = {
    TensorProto.FLOAT: 2.0**-18,
    TensorProto.DOUBLE: 2.0**-47,
    TensorProto.FLOAT16: 3 * 2.0**-9,
}
# Operators that add 0.5 or 1 to a term before or after an exponential: near zero, their error is a
# part of that, not of the result. It is absolute, in units of the amplitude.
_SQUASHING, _ABSOLUTE = (
    frozenset(
        {"Sigmoid", "HardSigmoid", "Softplus", "Erf", "Gelu", "Mish", "LSTM", "GRU", "RNN"}
        | {"FastGelu", "BiasGelu", "QuickGelu", "Swish", "Elu", "Selu", "Celu", "LogSoftmax"}
    ),
    1 / 16,
)
# Operators that pass values on without rounding.
_EXACT = frozenset(
    {"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Concat", "Slice"}
    | {"Split", "Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "Pad"}
    | {"Expand", "Tile", "Relu", "Abs", "Neg", "Sign", "Floor", "Ceil", "Round", "Max", "Min"}
    | {"Clip", "Where", "MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin", "Cast", "CastLike"}
    | {"Dropout", "DepthToSpace", "SpaceToDepth", "TopK", "OneHot", "Compress", "Trilu", "Range"}
    | {"ReverseSequence", "MaxUnpool", "Scatter", "CenterCropPad", "Optional"}
)
# Operators that, like these, compute integers from integers, such as in ``1 - mask``.
_KEEPS_WHOLE = _EXACT | {"Add", "Sub", "Mul", "ReduceSum"}
_BYTES = (TensorProto.INT8, TensorProto.UINT8)
# Operators that round floats to integers, as written-out quantizations do.
_ROUNDED = frozenset({"Round", "Floor", "Ceil"})
# Operators that read only the shape of their input.
SHAPE_ONLY = frozenset({"Shape", "Size", "ConstantOfShape"})
# Half a quantization step and a little more: one value in a hundred takes another step.
_STEP = 0.505
# Float constants with integers up to this, and of so many elements, are known to be integers.
_LARGEST_WHOLE, _MOST_CONSTANT = 2**20, 4096


def is_quantising(node: NodeProto) -> bool:
    """Whether a node rounds floats, or larger integers, to bytes."""
    return node.op_type.startswith(("QuantizeLinear", "DynamicQuantizeLinear", "QLinear", "QGemm"))


def is_quantised(model: ModelProto) -> bool:
    """Whether a model has quantized values, with constant or dynamic scales."""
    return any(map(is_quantising, model.graph.node))


class Feed(NamedTuple):
    """An additional input: random numbers around ``middle``, by up to ``reach``."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    middle: float
    reach: float


class Jittered(NamedTuple):
    """A model with additional inputs, which move its values.

    ``takes_steps`` says whether moved values are rounded to integers inside the model, such as
    quantized ones.
    """

    model: ModelProto
    inputs: list[Feed]
    takes_steps: bool

    def still(self) -> dict[str, np.ndarray]:
        """Values of the additional inputs at which nothing moves."""
        largest = max((prod(feed.shape) for feed in self.inputs), default=0)
        return self._taken(np.zeros(largest, np.float32), None)

    def feeds(self, seed: int, runs: int) -> Iterator[dict[str, np.ndarray]]:
        """Random values of the additional inputs, for each of ``runs`` runs."""
        generator = np.random.default_rng([seed, 7])
        largest = max((prod(feed.shape) for feed in self.inputs), default=0)
        # Long enough that two inputs of a run seldom begin at the same offset.
        pool = 2 * generator.random(2 * largest + 4096, dtype=np.float32) - 1
        for _ in range(runs):
            yield self._taken(pool, generator)

    def _taken(
        self, pool: np.ndarray, generator: np.random.Generator | None
    ) -> dict[str, np.ndarray]:
        """Inputs as views: together they would be as large as all values in between."""
        scaled: dict[Any, np.ndarray] = {}
        taken = {}
        for feed in self.inputs:
            kind = feed[2:]
            if kind not in scaled:
                wide = pool.astype(np.promote_types(feed.dtype, "f4"))
                scaled[kind] = (feed.middle + feed.reach * wide).astype(feed.dtype)
            size = prod(feed.shape)
            start = 0 if generator is None else int(generator.integers(0, pool.size - size + 1))
            taken[feed.name] = scaled[kind][start : start + size].reshape(feed.shape)
        return taken


def jittered(model: ModelProto) -> Jittered:
    """Move every rounded value that depends on the inputs a little.

    ``model`` has static shapes. Values without declared shape and type do not move. It is left as
    it is.
    """
    light_model, weights = detach_weights(model)
    dynamic = {value.name for value in graph_inputs(model.graph)}
    maker = _Maker(light_model, dynamic)
    set_nodes(light_model, maker.nodes())
    for feed in maker.feeds:
        element_type = helper.np_dtype_to_tensor_dtype(feed.dtype)
        light_model.graph.input.append(
            helper.make_tensor_value_info(feed.name, element_type, feed.shape)
        )
    return Jittered(attach_weights(light_model, weights), maker.feeds, maker.takes_steps)


def _whole_constants(model: ModelProto) -> set[str]:
    """Names of small float constants that hold only integers."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        value = next((a.t for a in node.attribute if a.name == "value"), None)
        if node.op_type == "Constant" and value is not None:
            tensors[node.output[0]] = value
    found = set()
    for name, tensor in tensors.items():
        if tensor.data_type in AMPLITUDE and element_count(tensor) <= _MOST_CONSTANT:
            values = numpy_helper.to_array(tensor).astype(np.float64)
            if (np.abs(values) <= _LARGEST_WHOLE).all() and (values == np.rint(values)).all():
                found.add(name)
    return found


class _Maker:
    """Rewrites nodes with factors between them.

    ``dynamic`` names the values that depend on the inputs, ``whole`` the floats that are integers,
    and ``moved`` those that have moved, each with the name of its moved form.
    """

    def __init__(self, model: ModelProto, inputs: set[str]) -> None:
        self.feeds: list[Feed] = []
        self.takes_steps = False
        self._nodes, self._nested = model.graph.node, has_nested_graphs(model)
        self._values = known_values(model)
        self._whole = _whole_constants(model)
        self._dynamic, self._moved = set(inputs), dict[str, str]()
        self._written: list[NodeProto] = []

    def nodes(self) -> list[NodeProto]:
        """The model's nodes, and those that move values between them."""
        for name in sorted(self._dynamic):
            self._move_read(name)
        for original in self._nodes:
            node = NodeProto.FromString(original.SerializeToString())
            is_fixed = not self._nested and self._dynamic.isdisjoint(node.input)
            if node.op_type in SHAPE_ONLY or is_fixed:
                self._written.append(node)
                continue
            self._dynamic.update(node.output)
            is_rounded = node.op_type in _ROUNDED and node.input[0] not in self._whole
            self.takes_steps |= is_quantising(node) or is_rounded
            if self._keeps_whole(node):
                self._whole.update(node.output)
            elif self._is_exact(node):
                given = {name for name in node.input if self._amplitude(name)} - self._whole
                if given and given <= self._moved.keys():
                    self._moved.update((name, name) for name in node.output)
            else:
                self._rounded(node)
                continue
            self._read_moved(node)
            self._written.append(node)
        return self._written

    def _rounded(self, node: NodeProto) -> None:
        """Write a node whose results are rounded: they move, and so do its inputs."""
        for name in dict.fromkeys(node.input):
            if name in self._dynamic and name not in self._whole:
                self._move_read(name)
        self._read_moved(node)
        self._written.append(node)
        for position, name in enumerate(node.output):
            if not name or name not in self._values:
                continue
            exact = f"{name}/exact"
            if is_quantising(node) and self._values[name].element_type in _BYTES:
                node.output[position] = exact
                self._step(exact, name)
            elif self._amplitude(name):
                node.output[position] = exact
                self._move(exact, name, name, node.op_type in _SQUASHING)
            self._moved[name] = name

    def _read_moved(self, node: NodeProto) -> None:
        for position, name in enumerate(node.input):
            node.input[position] = self._moved.get(name, name)

    def _move_read(self, name: str) -> None:
        """Move a value that has not moved yet: sums of it are rounded."""
        if self._amplitude(name) and name not in self._moved:
            self._moved[name] = f"{name}/moved"
            self._move(name, name, f"{name}/moved", False)

    def _is_exact(self, node: NodeProto) -> bool:
        return node.op_type in _EXACT and not self._narrows(node)

    def _keeps_whole(self, node: NodeProto) -> bool:
        """Whether the node computes integers from integers, in floats."""
        if node.op_type not in _KEEPS_WHOLE or self._narrows(node):
            return False
        return all(
            name in self._whole or (name in self._values and self._type(name) in INTEGERS)
            for name in node.input
            if name
        )

    def _narrows(self, node: NodeProto) -> bool:
        """Whether a cast rounds to fewer digits."""
        before, after = self._amplitude(node.input[0]), self._amplitude(node.output[0])
        return node.op_type in ("Cast", "CastLike") and 0 < before < after

    def _type(self, name: str) -> int:
        return self._values[name].element_type

    def _amplitude(self, name: str) -> float:
        return AMPLITUDE.get(self._type(name), 0.0) if name in self._values else 0.0

    def _feed(self, kind: str, of: str, middle: float, reach: float, element_type: int) -> str:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(element_type))
        shape = tuple(self._values[of].shape)
        self.feeds.append(Feed(f"{of}/{kind}", shape, dtype, middle, reach))
        return f"{of}/{kind}"

    def _op(self, operator: str, inputs: list[str], result: str, **attributes: Any) -> None:
        self._written.append(helper.make_node(operator, inputs, [result], **attributes))

    def _move(self, source: str, of: str, result: str, squashing: bool) -> None:
        """Multiply ``source``, of the shape of ``of``, by factors; if squashing, add terms."""
        reach, kind = self._amplitude(of), self._type(of)
        product = f"{of}/product" if squashing else result
        self._op("Mul", [source, self._feed("factor", of, 1.0, reach, kind)], product)
        if squashing:
            term = self._feed("term", of, 0.0, reach * _ABSOLUTE, kind)
            self._op("Add", [product, term], result)

    def _step(self, source: str, name: str) -> None:
        """Move a part of the quantized values by a step."""
        low, high = (-128.0, 127.0) if self._type(name) == TensorProto.INT8 else (0.0, 255.0)
        term = self._feed("step", name, 0.0, _STEP, TensorProto.FLOAT)
        wide, total, most, least, rounded = (
            f"{name}/{part}" for part in ("wide", "total", "most", "least", "rounded")
        )
        self._op("Cast", [source], wide, to=TensorProto.FLOAT)
        self._op("Add", [wide, term], total)
        self._op("Round", [total], rounded)
        for limit, value in ((least, low), (most, high)):
            tensor = helper.make_tensor(limit, TensorProto.FLOAT, [], [value])
            self._written.append(helper.make_node("Constant", [], [limit], value=tensor))
        self._op("Clip", [rounded, least, most], f"{name}/clipped")
        self._op("Cast", [f"{name}/clipped"], name, to=self._type(name))
