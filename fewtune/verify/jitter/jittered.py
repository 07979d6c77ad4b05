"""Jittered models, in which all values move a little: they measure rounding noise.

Between any two operators, values are multiplied by random factors close to one. The movement of an
output shows how far rounding may move it, including cancellation, quantisation steps, and depth.
The idea is Monte Carlo arithmetic (Parker, "Monte Carlo arithmetic", UCLA CSD-970002, 1997).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from fewtune.onnx_graph.graph import (
    AXES_AS_INPUT,
    attach_weights,
    detach_weights,
    element_count,
    graph_inputs,
    has_nested_graphs,
    opset_of,
    set_nodes,
)
from fewtune.verify.jitter.feeds import Feed, Jittered
from fewtune.verify.jitter.transforms import TRANSFORMS, line_axes, with_size_term
from fewtune.verify.jitter.variances import NORMALISATIONS, normalised_axes, with_moved_variance
from fewtune.verify.operator_kinds import (
    AMPLITUDE,
    EXACT,
    INTEGERS,
    KEEPS_WHOLE,
    QUANTISED,
    ROUNDED,
    SCALES,
    SHAPE_ONLY,
    SQUASHING,
)
from fewtune.verify.values import Value, known_values

# Absolute error of `SQUASHING` operators, in units of the amplitude. They add 0.5 or 1 to a term:
# near zero, their error is a part of that, not of the result.
_ABSOLUTE = 1 / 16
# Half a quantisation step and a little more: one value in a hundred takes another step.
_STEP = 0.505
# Constants with integers up to this, and of so many elements, are known to be integers.
_LARGEST_WHOLE = 2**20
_MOST_CONSTANT = 4096


def jittered(model: ModelProto) -> Jittered:
    """Move every rounded value that depends on the inputs a little.

    Parameters
    ----------
    model : ModelProto
        With static shapes. Values without declared shape and type do not move. It is left as it is.

    Returns
    -------
    jittered : Jittered
    """
    light_model, weights = detach_weights(model)
    maker = _Maker(known_values(model), _constants(model), opset_of(model))
    nodes = maker.nodes(light_model, {value.name for value in graph_inputs(model.graph)})
    set_nodes(light_model, nodes)
    for feed in maker.feeds:
        element_type = helper.np_dtype_to_tensor_dtype(feed.dtype)
        light_model.graph.input.append(
            helper.make_tensor_value_info(feed.name, element_type, feed.shape)
        )
    return Jittered(attach_weights(light_model, weights), maker.feeds, maker.takes_steps)


def _constants(model: ModelProto) -> dict[str, np.ndarray]:
    """Small numeric constants, by name."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        value = next((a.t for a in node.attribute if a.name == "value"), None)
        if node.op_type == "Constant" and value is not None:
            tensors[node.output[0]] = value
    return {
        name: numpy_helper.to_array(tensor)
        for name, tensor in tensors.items()
        if (tensor.data_type in AMPLITUDE or tensor.data_type in INTEGERS)
        and element_count(tensor) <= _MOST_CONSTANT
    }


def _whole(constants: Mapping[str, np.ndarray]) -> set[str]:
    """Names of float constants that hold only integers up to `_LARGEST_WHOLE`."""
    return {
        name
        for name, values in constants.items()
        if values.dtype.kind == "f"
        and (np.abs(values.astype(np.float64)) <= _LARGEST_WHOLE).all()
        and (values == np.rint(values)).all()
    }


class _Maker:
    """Rewrites nodes with factors between them."""

    def __init__(
        self,
        values: Mapping[str, Value],
        constants: Mapping[str, np.ndarray],
        opset: int,
    ) -> None:
        self._constants, self._opset = constants, opset
        self.feeds: list[Feed] = []
        self.takes_steps = False
        self._shapes = {name: value.shape for name, value in values.items()}
        self._types = {name: value.element_type for name, value in values.items()}
        self._whole = _whole(constants)
        self._replaced: dict[str, str] = {}

    def nodes(self, model: ModelProto, inputs: set[str]) -> list[NodeProto]:
        written: list[NodeProto] = []
        moves, moved = set(inputs), set()
        for name in sorted(inputs):
            if self._amplitude(name):
                written += self._moving(name, name, f"{name}/moved", False)
                self._replaced[name] = f"{name}/moved"
                moved.add(name)
        nested = has_nested_graphs(model)
        for original in model.graph.node:
            node = NodeProto.FromString(original.SerializeToString())
            if node.op_type in SHAPE_ONLY or (not nested and moves.isdisjoint(node.input)):
                written.append(node)
                continue
            moves.update(node.output)
            self.takes_steps |= self._takes_steps(node)
            is_exact = node.op_type in EXACT and not self._narrows(node)
            if self._keeps_whole(node):
                self._whole.update(node.output)
                is_exact = True
            if not is_exact:
                written += self._inputs_moved(node, moves, moved)
            for position, name in enumerate(node.input):
                node.input[position] = self._replaced.get(name, name)
            written.append(node)
            was_moved = self._all_moved(original, moved)
            for position, name in enumerate(original.output):
                if is_exact:
                    moved.update([name] if was_moved else [])
                elif name and self._scale(original) is not None and position == 0:
                    written += self._stepping(original, node)
                    moved.add(name)
                elif name and self._amplitude(name):
                    node.output[position] = f"{name}/exact"
                    if node.op_type in TRANSFORMS:
                        written += self._transformed(original)
                    elif self._has_variance(original, position):
                        written += self._normalised(original, node)
                    else:
                        squashing = node.op_type in SQUASHING
                        written += self._moving(f"{name}/exact", name, name, squashing)
                    moved.add(name)
        return written

    def _inputs_moved(self, node: NodeProto, moves: set[str], moved: set[str]) -> list[NodeProto]:
        """Move those inputs that have not moved yet: sums of them are rounded."""
        written = []
        for name in dict.fromkeys(node.input):
            is_new = name in moves and name not in moved and name not in self._whole
            if is_new and self._amplitude(name):
                written += self._moving(
                    self._replaced.get(name, name), name, f"{name}/moved", False
                )
                self._replaced[name] = f"{name}/moved"
                moved.add(name)
        return written

    def _all_moved(self, node: NodeProto, moved: set[str]) -> bool:
        """Whether every rounded input of a node has moved, so that its exact output has.

        A concatenation of an input that has moved and one that has not counts as not moved: a
        product that reads it moves all of it.
        """
        given = {name for name in node.input if self._amplitude(name)} - self._whole
        return bool(given) and given <= moved

    def _keeps_whole(self, node: NodeProto) -> bool:
        """Whether the node computes integers from integers, in floats."""
        if node.op_type not in KEEPS_WHOLE or self._narrows(node):
            return False
        given = [name for name in node.input if name]
        return all(name in self._whole or self._types.get(name) in INTEGERS for name in given)

    def _takes_steps(self, node: NodeProto) -> bool:
        """Whether the node rounds floats that may be between two integers."""
        is_rounded = node.op_type in ROUNDED and node.input[0] not in self._whole
        return node.op_type in QUANTISED or is_rounded

    def _narrows(self, node: NodeProto) -> bool:
        """Whether a cast rounds to fewer digits."""
        before, after = self._amplitude(node.input[0]), self._amplitude(node.output[0])
        return node.op_type in ("Cast", "CastLike") and 0 < before < after

    def _amplitude(self, name: str) -> float:
        if name not in self._shapes:
            return 0.0
        return AMPLITUDE.get(self._types.get(name, 0), 0.0)

    def _feed(
        self, name: str, low: float, high: float, dtype: np.dtype, of: str, grows: bool = True
    ) -> str:
        self.feeds.append(Feed(name, tuple(self._shapes[of]), dtype, low, high, grows))
        return name

    def _moving(self, source: str, of: str, result: str, squashing: bool) -> list[NodeProto]:
        """Multiply ``source``, of the shape of ``of``, by factors; if squashing, add terms."""
        amplitude = self._amplitude(of)
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(self._types[of]))
        factor = self._feed(f"{of}/factor", 1 - amplitude, 1 + amplitude, dtype, of)
        product = f"{of}/product" if squashing else result
        written = [helper.make_node("Mul", [source, factor], [product], name=f"{of}/moving")]
        if squashing:
            width = amplitude * _ABSOLUTE
            term = self._feed(f"{of}/term", -width, width, dtype, of)
            written.append(helper.make_node("Add", [product, term], [result], name=f"{of}/adding"))
        return written

    def _transformed(self, node: NodeProto) -> list[NodeProto]:
        """Move a Fourier transform's output by a part of itself and of its line's magnitude."""
        name = node.output[0]
        exact, moved, shape = f"{name}/exact", f"{name}/moved_by_factor", self._shapes[name]
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(self._types[name]))
        axes = line_axes(node, len(shape), self._constants, self._opset)
        width = self._amplitude(name) / math.sqrt(math.prod(shape[axis] for axis in axes))
        term = self._feed(f"{name}/term", -width, width, dtype, name)
        return [
            *self._moving(exact, name, moved, False),
            *with_size_term(exact, moved, term, axes, name),
        ]

    def _has_variance(self, node: NodeProto, position: int) -> bool:
        is_float = self._types.get(node.output[position]) == TensorProto.FLOAT
        is_known = node.op_type in NORMALISATIONS and self._opset >= AXES_AS_INPUT
        return is_known and is_float and position == 0

    def _normalised(self, original: NodeProto, node: NodeProto) -> list[NodeProto]:
        """Move a normalised value by a factor, and each row as its variance moves."""
        name = original.output[0]
        exact, moved, shape = f"{name}/exact", f"{name}/moved_by_factor", self._shapes[name]
        axes = normalised_axes(node, len(shape))
        rows = tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))
        terms, width = (f"{name}/term", f"{name}/mean_term"), AMPLITUDE[TensorProto.FLOAT]
        for term, most in zip(terms, (width / 2, width), strict=True):
            self.feeds.append(Feed(term, rows, np.dtype(np.float32), -most, most))
        return [
            *self._moving(exact, name, moved, False),
            *with_moved_variance(node, exact, moved, terms, shape, name),
        ]

    def _scale(self, node: NodeProto) -> tuple[str, str] | None:
        """Scale and zero point of an output in bytes; None unless the scale is one float32."""
        if node.op_type == "DynamicQuantizeLinear":
            return node.output[1], node.output[2]
        if node.op_type not in SCALES or node.output[0] not in self._shapes:
            return None
        scale, zero = (
            node.input[place] if place < len(node.input) else "" for place in SCALES[node.op_type]
        )
        plain = self._types.get(scale) == TensorProto.FLOAT and self._shapes.get(scale) in (
            [],
            [1],
        )
        small = self._types.get(node.output[0]) in (TensorProto.INT8, TensorProto.UINT8)
        return (scale, zero) if plain and small else None

    def _stepping(self, original: NodeProto, node: NodeProto) -> list[NodeProto]:
        """Move a part of the quantised values by a step."""
        name = original.output[0]
        scale, zero = self._scale(original) or ("", "")
        node.output[0] = f"{name}/exact"
        term = self._feed(f"{name}/step", -_STEP, _STEP, np.dtype(np.float32), name, False)
        tail = [scale, zero] if zero else [scale]
        wide, shift, total = f"{name}/wide", f"{name}/shift", f"{name}/total"
        return [
            helper.make_node("DequantizeLinear", [f"{name}/exact", *tail], [wide]),
            helper.make_node("Mul", [term, scale], [shift]),
            helper.make_node("Add", [wide, shift], [total]),
            helper.make_node("QuantizeLinear", [total, *tail], [name]),
        ]
