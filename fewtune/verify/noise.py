"""Measures the noise of a model's outputs: how far rounding may move them.

A jittered model's inputs, weights and sums are multiplied by random factors close to one. The
movement of an output shows how far rounding may move it, including cancellation, quantization
steps, and depth.
The idea is Monte Carlo arithmetic (Parker, "Monte Carlo arithmetic", UCLA CSD-970002, 1997).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from math import prod
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper

from fewtune.onnx_graph.external_data import LightModel, array_of, is_outside, light
from fewtune.onnx_graph.graph import attach_weights, detach_weights, graph_inputs, set_nodes
from fewtune.onnx_graph.session import OnnxruntimeSession
from fewtune.verify.comparison import PEAK, Expected, is_graded
from fewtune.verify.values import Value, known_values

RUNS = 6
# Half the width of random factors by element type: 32 units in the last place, 6 for float16. In
# float32 this leaves room for other orders of summation and for Winograd's transforms. Noise
# accumulates over depth. In an EfficientNet B0 with random weights, faults of 1 % in 18 of 24
# weight tensors were not found at 256 units, and in 8 of 11 at 32.
_AMPLITUDE: dict[int, float] = {
    TensorProto.FLOAT: 2.0**-18,
    TensorProto.DOUBLE: 2.0**-47,
    TensorProto.FLOAT16: 3 * 2.0**-9,
}
# The least of that in quantized models, where one value in a hundred then takes another step.
_QUANTISED = 2.0**-12
# Operators that round floats to integers, as written-out quantizations do.
_ROUNDS = frozenset({"Round", "Floor", "Ceil"})
# Operators whose results may be far larger than what is left when they are subtracted.
_SUMS = frozenset({"Add", "Sub", "Sum", "Mean", "ReduceSum", "ReduceMean"})
# Float constants with integers up to this, and of so many elements, are known to be integers. Those
# of a few elements may be extents, such as the scales of a Resize.
_LARGEST_WHOLE, _MOST_WHOLE, _MOST_EXTENTS = 2**20, 4096, 10
# Least noise of an element, relative to its magnitude, by bytes of a float: that of its operator.
_OWN_SIZE = {2: 2.0**-9, 4: 2.0**-19, 8: 2.0**-48}
# Exponentials underflow, and sigmoids add 0.5 or 1 to a term, so that near zero their error is a
# part of that, not of the result.
_SMALLEST = {2: 2.0**-14, 4: 2.0**-25, 8: 2.0**-54}

# An alternative result that exceeds its allowance by this factor is a fault, not noise.
_CONTRADICTION = 100.0
# Movements are summed in blocks of so many elements, whose doubles stay in the processor's cache.
_BLOCK = 2**15


def is_quantising(node: NodeProto) -> bool:
    """Whether a node rounds floats, or larger integers, to bytes."""
    return node.op_type.startswith(("QuantizeLinear", "DynamicQuantizeLinear", "QLinear", "QGemm"))


def is_quantised(model: ModelProto) -> bool:
    """Whether a model has quantized values, with constant or dynamic scales."""
    return any(map(is_quantising, model.graph.node))


class _Jittered:
    """A model with additional inputs, which move its inputs, its weights, and sums of these.

    ``takes_steps`` says whether moved values are rounded to integers inside the model, such as
    quantized ones.
    """

    def __init__(self, model: ModelProto) -> None:
        self._is_quantised = is_quantised(model)
        self.takes_steps = self._is_quantised or any(n.op_type in _ROUNDS for n in model.graph.node)
        self._known, self._feeds = known_values(model), dict[str, Value]()
        moving = [value.name for value in graph_inputs(model.graph)]
        moving += [each.name for each in model.graph.initializer if self._moves(each)]
        sources = {name for name in moving if self._is_float(name)}
        light_model, weights = detach_weights(model)
        set_nodes(light_model, self._nodes(light_model, sources))
        for name, (shape, kind) in self._feeds.items():
            light_model.graph.input.append(helper.make_tensor_value_info(name, kind, shape))
        # Given as inputs, since onnxruntime copies every weight of a model while it loads it.
        self.fed = {w.name: array_of(w) for w in weights if w.name in sources and is_outside(w)}
        self.model = attach_weights(light_model, [w for w in weights if w.name not in self.fed])
        # Long enough that two inputs of a run seldom begin at the same offset.
        self._room = 2 * max((prod(each.shape) for each in self._feeds.values()), default=0) + 4096

    def _moves(self, tensor: TensorProto) -> bool:
        count = prod(tensor.dims)
        if tensor.data_type not in _AMPLITUDE or 1 < count <= _MOST_EXTENTS:
            return False
        if count > _MOST_WHOLE:
            return True
        values = array_of(tensor).astype(np.float64)
        is_whole = (np.abs(values) <= _LARGEST_WHOLE).all() and (values == np.rint(values)).all()
        # Scales of quantizations are single numbers.
        return not is_whole and (count > 1 or self.takes_steps)

    def _is_float(self, name: str) -> bool:
        return name in self._known and self._known[name].element_type in _AMPLITUDE

    def _nodes(self, model: ModelProto, sources: set[str]) -> list[NodeProto]:
        """The model's nodes, and those that multiply what they read or sum up."""
        products, nodes, dependent = dict[str, NodeProto](), [], set(sources)
        for original in model.graph.node:
            node = NodeProto.FromString(original.SerializeToString())
            for position, name in enumerate(original.input):
                if name in sources:
                    node.input[position] = f"{name}/moved"
                    products[name] = self._product(name, name, f"{name}/moved")
            if not dependent.isdisjoint(original.input):
                dependent.update(node.output)
                name = node.output[0]
                if node.op_type in _SUMS and self._is_float(name):
                    node.output[0] = f"{name}/exact"
                    nodes.append(node)
                    node = self._product(f"{name}/exact", name, name)
            nodes.append(node)
        # Of what a node reads, onnxruntime runs first what stands last. If those were the products
        # of weights, all of them would be held at once.
        return [*products.values(), *nodes]

    def _product(self, source: str, of: str, result: str) -> NodeProto:
        """A node that multiplies a value, of the shape of ``of``, by factors."""
        self._feeds[f"{of}/factor"] = self._known[of]
        return helper.make_node("Mul", [source, f"{of}/factor"], [result])

    def feeds(self, seed: int, runs: int) -> Iterator[dict[str, np.ndarray]]:
        """Values of the additional inputs: some at which nothing moves, then random ones."""
        yield next(self._taken(np.zeros(self._room, np.float32), np.random.default_rng(0)))
        generator = np.random.default_rng([seed, 7])
        pool = 2 * generator.random(self._room, dtype=np.float32) - 1
        yield from islice(self._taken(pool, generator), runs)

    def _taken(self, pool: np.ndarray, random: np.random.Generator) -> Iterator[dict[str, Any]]:
        """Factors as views, again and again: together they would be as large as all weights."""
        scaled = {}
        for kind in {each.element_type for each in self._feeds.values()}:
            reach = max(_AMPLITUDE[kind], _QUANTISED if self._is_quantised else 0.0)
            dtype = helper.tensor_dtype_to_np_dtype(kind)
            scaled[kind] = (1.0 + reach * pool.astype(np.promote_types(dtype, "f4"))).astype(dtype)
        while True:
            taken = dict(self.fed)
            for name, (shape, kind) in self._feeds.items():
                start = int(random.integers(0, pool.size - prod(shape) + 1))
                taken[name] = scaled[kind][start : start + prod(shape)].reshape(shape)
            yield taken


class NoiseMeter:
    """Measures the noise of a model's outputs, for one draw of inputs after the other.

    Parameters
    ----------
    model : ModelProto or LightModel
        With static shapes. Fewer nodes are faster: a simplified model will do.
    threads : int

    Attributes
    ----------
    contradicted : list of str
        Outputs of the last draw that an equally valid computation contradicts.

    Notes
    -----
    A few runs do not show how far every element may move: one that ReLU has set to zero may be just
    above it elsewhere, and one in a Fourier transform may be zero since large terms cancel. So the
    mean square of the noise over the last two axes, such as those of an image's channel, is added
    to the square of each element's own. If values are quantized inside, an element moves when one
    of them takes another step, in one run and not in the next six: then the mean is over all axes.
    """

    def __init__(self, model: ModelProto | LightModel, threads: int) -> None:
        given, arrays = light(model)
        self._moving = _Jittered(given)
        left = {name: array for name, array in arrays.items() if name not in self._moving.fed}
        self._session = OnnxruntimeSession(LightModel(self._moving.model, left), threads)
        self._names = [value.name for value in given.graph.output]
        self.contradicted: list[str] = []

    def expected(
        self,
        feeds: dict[str, np.ndarray],
        values: Sequence[np.ndarray],
        seed: int,
        other: Sequence[np.ndarray] | None = None,
        runs: int = RUNS,
    ) -> list[Expected]:
        """Outputs with their noise, in the order of ``values``.

        Parameters
        ----------
        feeds : dict of arrays
        values : sequence of arrays
            The reference's outputs.
        seed : int
        other : sequence of arrays, optional
            Outputs for the same inputs that were computed in another valid way. Those that are far
            off do not count as noise; ``contradicted`` names them.
        runs : int
            How often values are moved.
        """
        self.contradicted = []
        # Distances are from the unmoved outputs of the jittered model, not from the reference: a
        # difference between the two models is a fault, not noise.
        moves = self._moving.feeds(seed, runs)
        still = self._session.run({**feeds, **next(moves)})
        movements = [
            _Movement(np.asarray(middle if np.shape(middle) == np.shape(value) else value))
            for middle, value in zip(still, values, strict=True)
        ]
        for more in moves:
            outputs = self._session.run({**feeds, **more})
            for movement, moved in zip(movements, outputs, strict=True):
                movement.add(np.asarray(moved))
        found = []
        for index, value in enumerate(map(np.asarray, values)):
            noise, name = movements[index].size(), self._names[index]
            if other is not None:
                away = _Movement(value)
                away.add(np.asarray(other[index]))
                most = _CONTRADICTION * PEAK * (noise + _floor(value))
                is_float = value.dtype.kind == "f" and not self._moving.takes_steps
                if is_float and np.any(away.size() > most):
                    self.contradicted.append(name)
                else:
                    noise = np.fmax(noise, away.size())
            if is_graded(value.dtype) and value.size:
                noise = np.sqrt(np.square(noise) + self._typical(np.square(noise)))
            if self._moving.takes_steps and value.dtype.kind == "f" and not noise.any():
                # An output that is quantized last moves by whole steps, or not at all.
                noise += 1.01 * _step(value) / PEAK
            noise += _floor(value)
            found.append(Expected(name, value, noise.astype(np.float32)))
        return found

    def _typical(self, squares: np.ndarray) -> np.ndarray:
        whole = np.mean(squares)
        if self._moving.takes_steps or squares.ndim < 3:
            return whole
        planes = np.mean(squares, axis=(-2, -1), keepdims=True)
        # A channel in which nothing moves may lie below ReLU's zero as a whole.
        return np.where(planes > 0, planes, whole)


class _Movement:
    """How far an output moves in a few runs: its mean square, or its largest for other types."""

    def __init__(self, middle: np.ndarray) -> None:
        self._middle, self._is_mean = middle, is_graded(middle.dtype)
        self._sums, self._counts = np.zeros(middle.size), np.zeros(middle.size, np.uint8)

    def add(self, moved: np.ndarray) -> None:
        """Add the outputs of one run; those of another shape say nothing."""
        if moved.shape != self._middle.shape:
            return
        ours, theirs = moved.reshape(-1), self._middle.reshape(-1)
        for start in range(0, ours.size, _BLOCK):
            part = slice(start, start + _BLOCK)
            with np.errstate(invalid="ignore", over="ignore"):
                distance = np.abs(np.subtract(ours[part], theirs[part], dtype=np.float64))
                finite = np.isfinite(distance)
                distance[~finite] = 0.0
                if self._is_mean:
                    self._sums[part] += np.square(distance)
                    self._counts[part] += finite
                else:
                    np.maximum(self._sums[part], distance, out=self._sums[part])

    def size(self) -> np.ndarray:
        """Root mean square of each element's finite distances, or the largest one."""
        found = np.sqrt(self._sums / np.maximum(self._counts, 1)) if self._is_mean else self._sums
        return found.reshape(self._middle.shape)


def _step(value: np.ndarray) -> float:
    """The smallest difference of two elements."""
    gaps = np.diff(np.unique(value[np.isfinite(value)]))
    return float(gaps.min()) if gaps.size else 0.0


def _floor(value: np.ndarray) -> np.ndarray:
    """Least noise of each element: its own rounding."""
    if value.dtype.kind != "f":
        return np.full(value.shape, 1.01 / PEAK if is_graded(value.dtype) else 0.0)
    size = value.dtype.itemsize
    magnitude = np.nan_to_num(np.abs(value.astype(np.float64)), posinf=0.0)
    return magnitude * _OWN_SIZE[size] + _SMALLEST[size]
